"""Plans against the exact optimum, the published table and the bounds of what planning costs."""

from __future__ import annotations

import random
import sys
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from atom_lite.chunking.cuts import Span, Target, chunk_times, cut
from atom_lite.chunking.flow_shop import equal_stages_seconds, makespan_seconds
from atom_lite.chunking.latency_model import LatencyModel
from atom_lite.chunking.plan_search import Pipeline, Plan, plan
from atom_lite.chunking.planner import PlanLimits, plan_limits
from atom_lite.chunking.planners.atom import AtomSettings, equal_latency_chunk
from tests.fakes.exact_cuts import all_cuts, exact_objective
from tests.unit.chunking.samples import KIMI, SERVED, SMALL, fixed_chunks, scaled

if TYPE_CHECKING:
    from types import FrameType

    from _typeshed import TraceFunction

LIMITS = plan_limits(32768)
NO_PREFIX_COST = LatencyModel.from_milliseconds(a=3.25e-7, b=6.03e-3, c=26.1)
TUNED_BY_HAND = (1024, 2048, 4096, 6144, 8192, 12288, 16384, 32768)
# prompt, stages, TTFT in ms of the best fixed chunk, ATOM's 32K/0.75 recipe and the makespan plan
TABLE = [
    (32768, 4, 1261, 2291, 1143),
    (65536, 4, 3232, 4119, 2944),
    (131072, 4, 9610, 10319, 8909),
    (262144, 4, 31679, 31598, 30087),
    (131072, 8, 11543, 14885, 10459),
]


def even(model: LatencyModel, stages: int, limits: PlanLimits = LIMITS) -> Pipeline:
    return Pipeline(models=(model,) * stages, limits=limits)


def ttft_ms(model: LatencyModel, sizes: list[int], stages: int) -> float:
    times = chunk_times(model, Span(0, sum(sizes)), sizes)
    return 1000.0 * equal_stages_seconds(times, stages)


def atom_sizes(prompt: int, settings: AtomSettings) -> list[int]:
    sizes: list[int] = []
    while sum(sizes) < prompt:
        chunk = equal_latency_chunk(KIMI, settings, sum(sizes)) or settings.budget_tokens
        sizes.append(min(chunk, prompt - sum(sizes)))
    return sizes


@pytest.mark.parametrize(("prompt", "stages", "fixed", "atom", "makespan"), TABLE)
def test_model_table_is_reproduced(
    prompt: int, stages: int, fixed: float, atom: float, makespan: float
) -> None:
    best = min(
        ttft_ms(KIMI, [c.new_tokens for c in fixed_chunks(prompt, size)], stages)
        for size in TUNED_BY_HAND
    )
    recipe = AtomSettings(budget_tokens=32768, smooth_factor=0.75)
    planned = plan(even(KIMI, stages), Span(0, prompt))
    assert best == pytest.approx(fixed, rel=0.005)
    assert ttft_ms(KIMI, atom_sizes(prompt, recipe), stages) == pytest.approx(atom, rel=0.005)
    assert 1000.0 * planned.predicted_seconds == pytest.approx(makespan, rel=0.005)


@pytest.mark.parametrize(
    ("model", "prompt", "most"),
    [
        (KIMI, 8192, 8192),
        (KIMI, 16384, 16384),
        (KIMI, 24000, 4096),
        (SMALL, 8192, 8192),
        (SERVED, 8192, 2048),
        (NO_PREFIX_COST, 16384, 16384),
    ],
)
@pytest.mark.parametrize("stages", [2, 4, 8])
def test_plan_is_within_half_a_percent_of_the_exact_optimum(
    model: LatencyModel, prompt: int, most: int, stages: int
) -> None:
    planned = plan(even(model, stages, plan_limits(most)), Span(0, prompt))
    exact = exact_objective(
        model,
        prompt_tokens=prompt,
        peak_weight=stages - 1,
        align_tokens=64,
        most_tokens=most,
    )
    assert planned.objective_seconds <= 1.005 * exact


@pytest.mark.parametrize("prefix", [1024, 8192, 65536])
def test_plan_after_a_prefix_hit_is_near_the_exact_optimum(prefix: int) -> None:
    planned = plan(even(KIMI, 4), Span(prefix, prefix + 12288))
    exact = exact_objective(
        KIMI,
        prompt_tokens=12288,
        peak_weight=3,
        align_tokens=64,
        most_tokens=32768,
        prefix_tokens=prefix,
    )
    assert planned.objective_seconds <= 1.005 * exact


@pytest.mark.parametrize("num_prefills", [2, 4, 16])
@pytest.mark.parametrize(("prompt", "most"), [(32768, 8192), (65536, 32768), (131072, 32768)])
def test_among_other_prefills_no_level_target_and_no_fixed_size_does_better(
    prompt: int, most: int, num_prefills: int
) -> None:
    limits, span = plan_limits(most), Span(0, prompt)
    planned = plan(even(KIMI, 4, limits), span, num_prefills=num_prefills)

    def seconds(sizes: list[int]) -> float:
        times = chunk_times(KIMI, span, sizes)
        return sum(times) + 3 / num_prefills * max(times)

    level = [cut(KIMI, span, Target(0.05 * 1.01**step), limits) for step in range(400)]
    same = [[c.new_tokens for c in fixed_chunks(prompt, size)] for size in range(512, most, 512)]
    assert seconds(list(planned.sizes)) == pytest.approx(planned.objective_seconds)
    assert planned.objective_seconds <= 1.005 * min(seconds(sizes) for sizes in level if sizes)
    assert planned.objective_seconds <= 1.005 * min(seconds(sizes) for sizes in same)


def test_without_a_prefix_cost_the_plan_meets_the_closed_form() -> None:
    prompt, stages = 65536, 4
    model = NO_PREFIX_COST
    work = model.chunk_seconds(0, prompt) - model.constant_seconds
    c, drain = model.constant_seconds, stages - 1
    best = work + drain * c + 2.0 * (drain * work * c) ** 0.5
    planned = plan(even(model, stages), Span(0, prompt))
    # Whole numbers of chunks of whole tiles cost a little.
    assert best * 0.9999 <= planned.predicted_seconds <= 1.005 * best


def test_other_prefills_make_chunks_larger() -> None:
    sole = plan(even(KIMI, 4), Span(0, 32768))
    shared = plan(even(KIMI, 4), Span(0, 32768), num_prefills=16)
    assert len(shared.sizes) < len(sole.sizes)
    assert sum(chunk_times(KIMI, Span(0, 32768), shared.sizes)) < sum(
        chunk_times(KIMI, Span(0, 32768), sole.sizes)
    )


@pytest.mark.parametrize("stages", [2, 4, 8])
@pytest.mark.parametrize("num_prefills", [1, 4])
@pytest.mark.parametrize("prompt", [300, 8192, 131072])
@pytest.mark.parametrize("factor", [1.0, 1.3])
def test_beside_streams_steps_are_shorter_and_the_prompt_hardly_later(
    prompt: int, num_prefills: int, stages: int, factor: float
) -> None:
    models = (*(SERVED,) * (stages - 1), scaled(SERVED, factor))
    pipeline = Pipeline(models=models, limits=plan_limits(2048))
    alone = plan(pipeline, Span(0, prompt), num_prefills=num_prefills)
    beside = plan(pipeline, Span(0, prompt), num_prefills=num_prefills, beside_streams=True)
    assert sum(beside.sizes) == prompt
    assert beside.peak_seconds <= alone.peak_seconds
    assert beside.objective_seconds <= 1.03 * alone.objective_seconds


def test_beside_streams_a_flat_optimum_is_used_for_shorter_steps() -> None:
    alone = plan(even(SMALL, 2), Span(0, 8192))
    beside = plan(even(SMALL, 2), Span(0, 8192), beside_streams=True)
    assert beside.peak_seconds <= 0.7 * alone.peak_seconds


def test_short_prompts_are_pipelined() -> None:
    assert len(plan(even(SERVED, 4), Span(0, 1024)).sizes) > 1


def test_one_stage_takes_one_chunk() -> None:
    assert plan(even(KIMI, 1), Span(0, 8192)).sizes == (8192,)


def test_a_prompt_under_the_floor_is_one_chunk() -> None:
    assert plan(even(SERVED, 4), Span(0, 200)).sizes == (200,)
    assert plan(even(SERVED, 4), Span(0, 1)).sizes == (1,)


def best_level(pipeline: Pipeline, span: Span) -> float:
    """The best equal-latency plan for uneven stages, by brute force over targets."""
    model = pipeline.slowest(span)
    whole = model.chunk_seconds(span.start, span.tokens)
    candidates = (
        cut(model, span, Target(whole * 0.985**step), pipeline.limits, at_most=400)
        for step in range(300)
    )
    return min(pipeline.makespan(span, sizes) for sizes in candidates if sizes)


def heavy_last(stages: int) -> tuple[LatencyModel, ...]:
    return (KIMI,) * (stages - 1) + (scaled(KIMI, 1.3),)


@pytest.mark.parametrize("prompt", [8192, 32768, 131072])
@pytest.mark.parametrize("stages", [2, 4, 8])
def test_a_heavy_last_stage_gets_a_ramp_that_beats_every_level_plan(
    prompt: int, stages: int
) -> None:
    pipeline = Pipeline(models=heavy_last(stages), limits=LIMITS)
    span = Span(0, prompt)
    planned = plan(pipeline, span)
    level = best_level(pipeline, span)
    assert planned.predicted_seconds <= 1.001 * level
    if stages == 4 and prompt >= 32768:  # a prompt of two chunks has no room for a ramp
        assert planned.predicted_seconds <= 0.98 * level


@pytest.mark.parametrize("order", [(1.0, 1.0, 1.0, 16 / 15), (1.3, 1.0, 1.0, 1.0), (1, 1.3, 1, 1)])
def test_other_uneven_splits_are_never_worse_than_level(order: tuple[float, ...]) -> None:
    pipeline = Pipeline(models=tuple(scaled(KIMI, f) for f in order), limits=LIMITS)
    span = Span(0, 32768)
    assert plan(pipeline, span).predicted_seconds <= 1.001 * best_level(pipeline, span)


def test_uneven_plans_of_short_prompts_are_near_the_best_of_all_cuts() -> None:
    rng = random.Random(5)
    gaps = []
    for _ in range(40):
        model = LatencyModel.from_milliseconds(
            a=0.1 / rng.uniform(2048, 131_072),
            b=0.1,
            c=0.1 * rng.choice((rng.uniform(0, 4), rng.uniform(16, 400))),
            gamma=0.1 * rng.choice((0.0, rng.uniform(0.002, 0.1))),
        )
        factors = [rng.uniform(0.6, 1.6) for _ in range(rng.randint(2, 5))]
        limits = plan_limits(rng.choice((512, 1024)))
        pipeline = Pipeline(models=tuple(scaled(model, f) for f in factors), limits=limits)
        span = Span(0, rng.randrange(512, 1100))
        best = min(pipeline.makespan(span, sizes) for sizes in all_cuts(span.tokens, limits))
        gaps.append(plan(pipeline, span).predicted_seconds / best - 1.0)
    assert min(gaps) > -1e-9
    assert sorted(gaps)[37] <= 0.005
    assert max(gaps) <= 0.03


def test_predicted_seconds_are_the_exact_recursions() -> None:
    models = heavy_last(4)
    planned = plan(Pipeline(models=models, limits=LIMITS), Span(0, 32768))
    times = [chunk_times(model, planned.span, planned.sizes) for model in models]
    assert planned.predicted_seconds == pytest.approx(makespan_seconds(times))


def test_kv_that_has_to_be_handed_over_makes_the_last_chunk_small() -> None:
    span = Span(0, 32768)
    plain = plan(even(KIMI, 4), span)
    handed = plan(
        Pipeline(models=(KIMI,) * 4, limits=LIMITS, transfer_seconds_per_token=5e-5), span
    )
    assert handed.sizes[-1] < plain.sizes[-1]
    assert sum(handed.sizes) == 32768
    cost = 5e-5
    assert (
        handed.predicted_seconds + cost * handed.sizes[-1]
        < plain.predicted_seconds + cost * plain.sizes[-1]
    )


@pytest.mark.parametrize(
    "model",
    [
        LatencyModel.from_milliseconds(a=0.0, b=0.01, c=0.0),
        LatencyModel.from_milliseconds(a=1e-5, b=0.0, c=0.0),
        LatencyModel.from_milliseconds(a=0.0, b=0.01, c=5.0, gamma=0.1),
        LatencyModel.from_milliseconds(a=0.0, b=0.0, c=5.0),
    ],
    ids=["no overhead", "attention only", "dear prefix", "constant only"],
)
def test_degenerate_models_still_give_a_complete_plan(model: LatencyModel) -> None:
    planned = plan(even(model, 4, plan_limits(4096)), Span(0, 20_000))
    assert sum(planned.sizes) == 20_000
    assert max(planned.sizes) <= 4096


# What a search costs is counted, not timed: lines of Python, about 80 ns each on a core of a Zen 3.
# The bounds are 10 ms, 50 ms and a hundredth of the predicted time; `benchmarks/planning_cost.py`
# measures the times themselves.
EVEN_LINES = 125_000
UNEVEN_LINES = 625_000
LINES_PER_PREDICTED_SECOND = 125_000
NEGLIGIBLE_LINES = 20_000


def count_lines(pipeline: Pipeline, span: Span) -> tuple[int, Plan]:
    """Lines of Python that the search executes, calls and returns included, and what it found."""
    lines = 0

    def count(_frame: FrameType, _event: str, _argument: object) -> TraceFunction:
        nonlocal lines
        lines += 1
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        planned = plan(pipeline, span)
    finally:
        sys.settrace(before)
    return lines, planned


def affordable_lines(planned: Plan) -> float:
    return max(LINES_PER_PREDICTED_SECOND * planned.predicted_seconds, NEGLIGIBLE_LINES)


@pytest.mark.parametrize("prompt", [2048, 8192, 32768, 131072, 262144])
@pytest.mark.parametrize("stages", [2, 4, 8])
def test_planning_equal_stages_costs_little(prompt: int, stages: int) -> None:
    lines, planned = count_lines(even(KIMI, stages), Span(0, prompt))
    assert lines <= EVEN_LINES
    assert lines <= affordable_lines(planned)


@pytest.mark.parametrize("prompt", [2048, 8192, 32768, 131072, 262144])
@pytest.mark.parametrize("stages", [2, 4, 8])
def test_planning_uneven_stages_costs_five_times_as_much_at_most(prompt: int, stages: int) -> None:
    pipeline = Pipeline(models=heavy_last(stages), limits=LIMITS)
    lines, planned = count_lines(pipeline, Span(0, prompt))
    assert lines <= UNEVEN_LINES
    assert lines <= affordable_lines(planned)


def test_many_tiny_chunks_do_not_make_planning_slow() -> None:
    cheap = LatencyModel.from_milliseconds(a=3e-6, b=0.006, c=0.01)
    lines, planned = count_lines(even(cheap, 8), Span(0, 65536))
    assert lines <= EVEN_LINES
    assert all(
        earlier >= later for earlier, later in pairwise(planned.sizes[1:-1])
    )  # a rest is in front
