from itertools import pairwise

import pytest

from atom_lite.chunking.latency_model import LatencyModel
from atom_lite.chunking.planner import ChunkRequest, Supply
from atom_lite.chunking.planners.atom import (
    AtomPlanner,
    AtomSettings,
    equal_latency_chunk,
    prefix_bounded_chunk,
    shrinks_usefully,
)
from atom_lite.errors import ConfigError
from tests.unit.chunking.samples import HEAVY_PREFIX, KIMI, SMALL, UNIT

GOLDEN = [
    (KIMI, 32768, 0.75, 4096, 32768, 20352),
    (KIMI, 32768, 0.75, 4096, 131072, 12032),
    (KIMI, 32768, 0.75, 4096, 524288, 8704),
    (KIMI, 32768, 1.0, 4096, 32768, 16192),
    (KIMI, 32768, 1.0, 4096, 131072, 5120),
    (KIMI, 32768, 1.0, 4096, 524288, 4096),
    (KIMI, 32768, 0.0, 4096, 131072, 32768),
    (KIMI, 16384, 0.75, 4096, 16384, 10816),
    (KIMI, 16384, 0.75, 4096, 65536, 6336),
    (KIMI, 16384, 0.75, 4096, 262144, 4224),
    (SMALL, 2048, 0.75, 128, 2048, 1472),
    (SMALL, 2048, 0.75, 128, 8192, 960),
    (SMALL, 2048, 1.0, 128, 2048, 1344),
    (SMALL, 2048, 1.0, 128, 8192, 576),
    (SMALL, 1024, 0.75, 256, 1024, 832),
    (SMALL, 1024, 0.75, 256, 4096, 576),
    (UNIT, 1024, 1.0, 64, 1024, 384),
    (HEAVY_PREFIX, 8192, 0.75, 1024, 8192, 8192),
    (HEAVY_PREFIX, 8192, 0.75, 1024, 200000, None),
]
SHARP = AtomSettings(budget_tokens=32768, smooth_factor=1.0)


def settings(budget: int, smooth: float = 1.0, floor: int = 64) -> AtomSettings:
    return AtomSettings(budget_tokens=budget, smooth_factor=smooth, min_chunk_tokens=floor)


def planner(config: AtomSettings, model: LatencyModel | None) -> AtomPlanner:
    made = AtomPlanner(config)
    made.model = model
    return made


def request(prefix: int, remaining: int, budget: int = 10**9, **kwargs: object) -> ChunkRequest:
    fields = {"sequence_id": 1, "must_be_whole": False} | kwargs
    return ChunkRequest(
        prefix_tokens=prefix,
        remaining_tokens=remaining,
        budget_tokens=budget,
        sequence_id=int(str(fields["sequence_id"])),
        must_be_whole=bool(fields["must_be_whole"]),
    )


def chunks_of(made: AtomPlanner, prompt: int, prefix: int = 0, sequence_id: int = 1) -> list[int]:
    sizes = []
    while prefix < prompt:
        made.begin_step(Supply(1))
        decision = made.next_chunk(request(prefix, prompt - prefix, sequence_id=sequence_id))
        sizes.append(decision.tokens)
        prefix += decision.tokens
    return sizes


@pytest.mark.parametrize(("model", "budget", "smooth", "floor", "prefix", "chunk"), GOLDEN)
def test_atom_golden_vectors(
    model: LatencyModel, budget: int, smooth: float, floor: int, prefix: int, chunk: int | None
) -> None:
    assert equal_latency_chunk(model, settings(budget, smooth, floor), prefix) == chunk


@pytest.mark.parametrize(("model", "budget", "smooth", "floor", "prefix", "chunk"), GOLDEN)
def test_atom_golden_vectors_start_with_the_budget(
    model: LatencyModel, budget: int, smooth: float, floor: int, prefix: int, chunk: int | None
) -> None:
    assert equal_latency_chunk(model, settings(budget, smooth, floor), 0) == budget


def test_atom_own_run_has_thirteen_chunks() -> None:
    sizes = chunks_of(planner(SHARP, KIMI), 131072)
    assert len(sizes) == 13
    assert sizes[:3] == [32768, 16192, 12416]
    assert sizes[-2:] == [5504, 3840]
    assert sum(sizes) == 131072


def test_atom_21_a_flat_model_predicts_no_useful_shrink() -> None:
    flat = LatencyModel.from_milliseconds(a=1e-12, b=6e-3, c=0.0, gamma=1e-9)
    assert not shrinks_usefully(flat, 32768)
    assert shrinks_usefully(KIMI, 32768)


def test_atom_22_increment_is_equalised_and_aligned_down() -> None:
    # x^2 + 2*1024*x = 1024^2 has its root at 424.2.
    assert equal_latency_chunk(UNIT, settings(1024), 1024) == 384


def test_atom_23_min_chunk_is_a_floor() -> None:
    assert equal_latency_chunk(UNIT, settings(1024, floor=512), 1024) == 512
    assert equal_latency_chunk(KIMI, settings(32768, floor=64), 524288) != 4096


def test_atom_24_the_prefix_cost_is_charged_against_the_budget() -> None:
    without = LatencyModel.from_milliseconds(a=3.25e-7, b=6.03e-3, c=26.1)
    free = equal_latency_chunk(without, settings(32768), 131072)
    charged = equal_latency_chunk(KIMI, settings(32768), 131072)
    assert free is not None and charged is not None
    assert charged < free


def test_atom_25_the_prefix_takes_at_most_a_fifth_of_a_chunk() -> None:
    prefix = 524288
    chunk = prefix_bounded_chunk(KIMI, prefix)
    own = KIMI.chunk_seconds(prefix, chunk) - KIMI.chunk_seconds(prefix, 0)
    overhead = KIMI.prefix_seconds_per_token * prefix
    assert overhead / (overhead + own) == pytest.approx(0.2)
    floored = equal_latency_chunk(KIMI, settings(32768, floor=64), prefix)
    assert floored == int(chunk) // 64 * 64
    assert prefix_bounded_chunk(UNIT, prefix) == 0.0


def test_atom_26_an_unreachable_target_keeps_the_fixed_budget() -> None:
    made = planner(settings(8192, 0.75, 1024), HEAVY_PREFIX)
    decision = made.next_chunk(request(200_000, 50_000))
    assert decision == (8192, "unreachable")


def test_atom_27_never_above_the_budget() -> None:
    huge_prefix = LatencyModel.from_milliseconds(a=1e-5, b=0.01, c=0.0, gamma=10.0)
    for prefix in (64, 4096, 131072):
        chunk = equal_latency_chunk(huge_prefix, settings(4096), prefix)
        assert chunk is None or chunk <= 4096


def test_atom_28_smooth_zero_is_fixed_chunking() -> None:
    assert chunks_of(planner(settings(1024, 0.0), UNIT), 5000) == [1024] * 4 + [904]


@pytest.mark.parametrize("smooth", [-0.1, 1.1, float("nan")])
def test_atom_29_smooth_outside_zero_to_one_is_refused(smooth: float) -> None:
    with pytest.raises(ConfigError, match=r"smooth-factor.*\[0, 1\]"):
        settings(1024, smooth)


@pytest.mark.parametrize(
    "letters", [{"a": -1.0, "b": 1.0, "c": 0.0}, {"a": 1.0, "b": -1.0, "c": 0}]
)
def test_atom_29_coefficients_with_the_wrong_sign_are_refused(letters: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="at least 0"):
        LatencyModel.from_milliseconds(**letters)


def test_atom_29_coefficients_of_the_wrong_count_are_refused() -> None:
    with pytest.raises(TypeError):
        LatencyModel.from_milliseconds(a=1.0, b=1.0)  # type: ignore[call-arg]


def test_atom_30_other_prefills_keep_chunks_fixed_for_sixteen_steps() -> None:
    made = planner(settings(1024), UNIT)
    made.begin_step(Supply(2))
    assert made.next_chunk(request(1024, 5000)) == (1024, "other_prefills")
    for _ in range(15):
        made.begin_step(Supply(1))
        assert made.next_chunk(request(1024, 5000)).reason == "other_prefills"
    made.begin_step(Supply(1))
    assert made.next_chunk(request(1024, 5000)) == (384, "model")


def test_atom_33_the_final_piece_is_not_aligned() -> None:
    made = planner(settings(1024), UNIT)
    assert made.next_chunk(request(1024, 300)).tokens == 300
    sizes = chunks_of(made, 3001)
    assert sizes[-1] % 64 != 0
    assert all(size % 64 == 0 for size in sizes[:-1])


def test_atom_33_step_budget_and_remaining_prompt_bound_the_chunk() -> None:
    made = planner(settings(1024), UNIT)
    assert made.next_chunk(request(1024, 5000, budget=200)).tokens == 200
    assert made.next_chunk(request(0, 700)).tokens == 700


def test_atom_34_the_prefix_with_its_cache_hit_is_what_counts() -> None:
    made = planner(settings(1024), UNIT)
    # A prompt whose first 1024 tokens were cached starts with the chunk of that prefix.
    assert chunks_of(made, 4096, prefix=1024)[0] == 384


def test_atom_a_prompt_within_the_budget_is_one_chunk() -> None:
    assert chunks_of(planner(SHARP, KIMI), 32768) == [32768]


def test_atom_a_prefill_that_must_go_in_one_forward_keeps_the_fixed_budget() -> None:
    made = planner(settings(1024), UNIT)
    assert made.next_chunk(request(1024, 900, must_be_whole=True)) == (900, "whole_prompt")


def test_atom_sweep_alternates_a_quarter_and_the_budget_small_first() -> None:
    made = planner(settings(1024, floor=128), None)
    made.is_calibrating = True
    first = [chunks_of(made, 2048, sequence_id=id)[0] for id in (1, 2, 3)]
    assert first == [256, 1024, 256]
    assert chunks_of(made, 2048, sequence_id=1) == [256] * 8


def test_atom_sweep_does_not_go_below_min_chunk() -> None:
    assert settings(8192, floor=4096).sweep_tokens == (4096, 8192)


def test_atom_sweep_is_for_sole_prefills() -> None:
    made = planner(settings(1024, floor=128), None)
    made.is_calibrating = True
    made.begin_step(Supply(2))
    assert made.next_chunk(request(0, 4096)) == (1024, "other_prefills")
    # The burst has not used up a turn.
    for _ in range(16):
        made.begin_step(Supply(1))
    assert made.next_chunk(request(0, 4096, sequence_id=7)) == (256, "sweep")
    made.forget(7)


def test_atom_without_model_or_calibration_chunks_are_fixed() -> None:
    assert planner(settings(1024), None).next_chunk(request(0, 4096)) == (1024, "fixed")


def test_atom_model_sized_chunks_take_equal_time_until_the_floor() -> None:
    sizes = chunks_of(planner(SHARP, KIMI), 131072)[:-1]
    times, position = [], 0
    for size in sizes:
        times.append(KIMI.chunk_seconds(position, size))
        position += size
    # c cancels from the target but is paid, and each chunk is rounded down to 64 tokens.
    for earlier, later in pairwise(times[1:]):
        assert later == pytest.approx(earlier, rel=0.03)


@pytest.mark.parametrize(("field", "value"), [("budget_tokens", 0), ("min_chunk_tokens", 0)])
def test_sizes_below_one_are_refused(field: str, value: int) -> None:
    fields = {"budget_tokens": 1024, "min_chunk_tokens": 64} | {field: value}
    with pytest.raises(ConfigError, match="at least 1"):
        AtomSettings(**fields)
