import math

import pytest

from atom_lite.chunking.latency_model import LatencyModel
from atom_lite.chunking.planner import ChunkPlanner, ChunkRequest, Supply
from atom_lite.chunking.planners.fixed import FixedPlanner
from atom_lite.chunking.planners.linear import LinearPlanner
from atom_lite.chunking.planners.sglang import SglangPlanner, SglangSettings, sglang_chunk
from atom_lite.errors import ConfigError
from tests.unit.chunking.samples import KIMI, SMALL

SETTINGS = SglangSettings(base_tokens=4096, page_tokens=16, max_model_len=32768)


def request(prefix: int, remaining: int, budget: int = 10**6, whole: bool = False) -> ChunkRequest:
    return ChunkRequest(
        sequence_id=1,
        prefix_tokens=prefix,
        remaining_tokens=remaining,
        budget_tokens=budget,
        must_be_whole=whole,
    )


def serve(planner: ChunkPlanner, prompt: int) -> list[int]:
    sizes: list[int] = []
    while sum(sizes) < prompt:
        planner.begin_step(Supply(1))
        done = sum(sizes)
        sizes.append(planner.next_chunk(request(done, prompt - done)).tokens)
    planner.forget(1)
    return sizes


def test_fixed_takes_the_budget_or_its_size() -> None:
    assert FixedPlanner().next_chunk(request(0, 5000, 300)) == (300, "fixed")
    assert serve(FixedPlanner(512), 1300) == [512, 512, 276]
    assert FixedPlanner(512).next_chunk(request(0, 1300, whole=True)) == (1300, "whole_prompt")


def test_linear_falls_over_equal_spans_in_multiples_of_32() -> None:
    planner = LinearPlanner(high_tokens=1024, low_tokens=256, stages=4)
    firsts = [planner.next_chunk(request(p, 8192 - p)).tokens for p in (0, 2048, 4096, 6144)]
    assert firsts == [1024, 768, 512, 256]
    assert sum(serve(planner, 8192)) == 8192
    assert planner.next_chunk(request(0, 8192)).reason == "schedule"
    uneven = LinearPlanner(high_tokens=1000, low_tokens=100, stages=3)
    assert all(uneven.next_chunk(request(p, 9000 - p)).tokens % 32 == 0 for p in (0, 3000))


def test_linear_with_one_stage_is_fixed() -> None:
    assert serve(LinearPlanner(high_tokens=512, low_tokens=512, stages=1), 1024) == [512, 512]
    whole = request(0, 900, whole=True)
    one = LinearPlanner(high_tokens=512, low_tokens=512, stages=1)
    assert one.next_chunk(whole) == (900, "whole_prompt")


@pytest.mark.parametrize(("high", "low", "stages"), [(256, 512, 2), (512, 16, 2), (512, 256, 0)])
def test_linear_refuses_schedules_that_do_not_fall(high: int, low: int, stages: int) -> None:
    with pytest.raises(ConfigError, match="linear chunking"):
        LinearPlanner(high_tokens=high, low_tokens=low, stages=stages)


def test_sglang_starts_with_its_base_and_stays_above_a_quarter_of_it() -> None:
    planner = SglangPlanner(SETTINGS)
    planner.install((SMALL,))
    sizes = serve(planner, 30_000)
    assert sizes[0] == 4096
    assert min(sizes[:-1]) >= 1024
    assert all(size % 64 == 0 for size in sizes[:-1])


def test_sglang_solves_without_a_prefix_term() -> None:
    a, b = SMALL.attention_seconds_per_area, SMALL.linear_seconds_per_token
    target = a * 4096**2 + b * 4096
    slope = 2 * a * 8192 + b
    raw = (-slope + math.sqrt(slope**2 + 4 * a * target)) / (2 * a)
    expected = int(4096 + 0.75 * (raw - 4096)) // 64 * 64
    assert sglang_chunk(SMALL, SETTINGS, 8192) == expected


def test_sglang_leaves_a_tiny_tail() -> None:
    # The defect that the makespan policy does not have: the rest is what it is.
    settings = SglangSettings(
        base_tokens=4096, page_tokens=1, max_model_len=65536, smooth_factor=0.65
    )
    planner = SglangPlanner(settings, KIMI)
    tails = [serve(planner, prompt)[-1] for prompt in range(12_000, 16_384, 64)]
    assert min(tails) < 192


def test_sglang_keeps_100_tokens_from_the_context_limit() -> None:
    assert sglang_chunk(SMALL, SETTINGS, 32768 - 300) == 192
    assert sglang_chunk(SMALL, SETTINGS, 32768 - 150) is None


def test_sglang_without_a_usable_model_keeps_the_base() -> None:
    assert SglangPlanner(SETTINGS).next_chunk(request(0, 9000)) == (4096, "fixed")
    flat = LatencyModel.from_milliseconds(a=0.0, b=0.01, c=1.0)
    planner = SglangPlanner(SETTINGS, flat)
    assert planner.next_chunk(request(4096, 9000)) == (4096, "unreachable")
    assert planner.next_chunk(request(0, 9000, whole=True)) == (9000, "whole_prompt")
