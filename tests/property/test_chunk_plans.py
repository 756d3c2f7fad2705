"""Whatever model, prompt and budgets: chunks are complete, bounded, aligned and not tiny."""

import random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from atom_lite.chunking.cuts import Span
from atom_lite.chunking.latency_model import LatencyModel
from atom_lite.chunking.plan_search import Pipeline, plan
from atom_lite.chunking.planner import ChunkPlanner, ChunkRequest, Supply, plan_limits
from atom_lite.chunking.planners.atom import AtomPlanner, AtomSettings
from atom_lite.chunking.planners.fixed import FixedPlanner
from atom_lite.chunking.planners.linear import LinearPlanner
from atom_lite.chunking.planners.makespan import MakespanPlanner
from atom_lite.chunking.planners.sglang import SglangPlanner, SglangSettings
from tests.fakes.exact_cuts import exact_objective
from tests.unit.chunking.samples import fixed_chunks, scaled

models = st.builds(
    LatencyModel.from_milliseconds,
    a=st.floats(1e-8, 1e-4),
    b=st.floats(1e-4, 0.5),
    c=st.floats(0.0, 50.0),
    gamma=st.one_of(st.just(0.0), st.floats(1e-6, 1e-2)),
)
FIXED_SIZES = (128, 256, 512, 1024, 2048, 4096)


def policies(model: LatencyModel | None, most: int) -> list[ChunkPlanner]:
    made: list[ChunkPlanner] = [FixedPlanner(), FixedPlanner(512)]
    made.append(LinearPlanner(high_tokens=1024, low_tokens=128, stages=5))
    made.append(
        SglangPlanner(SglangSettings(base_tokens=most, page_tokens=16, max_model_len=10**6), model)
    )
    atom = AtomPlanner(AtomSettings(budget_tokens=most, min_chunk_tokens=64))
    atom.model, atom.is_calibrating = model, model is None
    makespan = MakespanPlanner(plan_limits(most))
    if model is not None:
        makespan.install((model,) * 3 + (scaled(model, 1.2),))
    return [*made, atom, makespan]


@settings(max_examples=25, deadline=None)
@given(
    st.one_of(st.none(), models),
    st.integers(0, 20_000),
    st.integers(1, 20_000),
    st.integers(64, 8192),
    st.data(),
)
def test_every_policy_serves_every_prompt_within_every_budget(
    model: LatencyModel | None, prefix: int, tokens: int, most: int, data: st.DataObject
) -> None:
    budgets = data.draw(st.lists(st.integers(1, 8192), min_size=1, max_size=6))
    loads = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=3))
    for planner in policies(model, most):
        position, step = prefix, 0
        while position < prefix + tokens:
            planner.begin_step(Supply(loads[step % len(loads)]))
            request = ChunkRequest(
                sequence_id=1,
                prefix_tokens=position,
                remaining_tokens=prefix + tokens - position,
                budget_tokens=max(budgets[step % len(budgets)], 64 if step > 200 else 1),
            )
            decision = planner.next_chunk(request)
            assert 1 <= decision.tokens <= request.most_tokens
            position += decision.tokens
            step += 1
        assert position == prefix + tokens


@settings(max_examples=25, deadline=None)
@given(
    models,
    st.integers(0, 50_000),
    st.integers(1, 50_000),
    st.integers(64, 16384),
    st.integers(1, 8),
)
def test_plans_are_complete_bounded_aligned_and_without_a_tiny_tail(
    model: LatencyModel, start: int, tokens: int, most: int, stages: int
) -> None:
    limits = plan_limits(most)
    pipeline = Pipeline(models=(model,) * stages, limits=limits)
    for num_prefills in (1, 2, 16):
        sizes = plan(pipeline, Span(start, start + tokens), num_prefills=num_prefills).sizes
        assert sum(sizes) == tokens
        assert max(sizes) <= most
        assert all(size % limits.align == 0 for size in sizes[:-1])
        assert min(sizes) >= min(limits.floor, tokens)


def gap_to_the_exact_optimum(rng: random.Random, constant_tokens: float) -> float:
    """Of a drawn prompt, over stages whose terms are drawn by their ratio to the linear cost.

    `constant_tokens`: as many new tokens cost what a step costs anyhow.
    """
    b = 0.1
    model = LatencyModel.from_milliseconds(
        a=b / (2.0 * rng.uniform(1024, 65_536)),  # prefix at which attention has caught up
        b=b,
        c=b * constant_tokens,
        gamma=b * rng.choice((0.0, rng.uniform(0.002, 0.1), rng.uniform(0.1, 3.0))),
    )
    tokens, stages = rng.randrange(200, 8192), rng.randint(2, 8)
    limits = plan_limits(rng.choice((512, 1024, 2048, 8192)))
    planned = plan(Pipeline(models=(model,) * stages, limits=limits), Span(0, tokens))
    exact = exact_objective(
        model,
        prompt_tokens=tokens,
        peak_weight=stages - 1,
        align_tokens=limits.align,
        most_tokens=limits.most,
        least_tokens=limits.floor,
    )
    return planned.objective_seconds / exact - 1.0


@pytest.mark.parametrize("count", [50, pytest.param(300, marks=pytest.mark.full)])
@pytest.mark.parametrize("constant_tokens", [(16.0, 5000.0), (0.0, 16.0), (0.0, 0.0)])
def test_plans_of_drawn_machines_and_prompts_are_within_half_a_percent_of_the_optimum(
    constant_tokens: tuple[float, float], count: int
) -> None:
    rng = random.Random(3)
    gaps = [gap_to_the_exact_optimum(rng, rng.uniform(*constant_tokens)) for _ in range(count)]
    assert min(gaps) > -2e-6  # what the oracle's own bound leaves open
    assert max(gaps) <= 0.005


def best_fixed(pipeline: Pipeline, span: Span) -> float:
    """The best fixed chunk; tails under the floor, where no model holds, do not count."""
    cuts = (
        [chunk.new_tokens for chunk in fixed_chunks(span.end, size, span.start)]
        for size in FIXED_SIZES
    )
    floor = min(pipeline.limits.floor, span.tokens)
    return min(pipeline.makespan(span, sizes) for sizes in cuts if min(sizes) >= floor)


@settings(max_examples=25, deadline=None)
@given(models, st.integers(0, 16_384), st.integers(1, 32_768), st.integers(2, 8))
def test_a_plan_is_at_most_one_percent_behind_the_best_fixed_chunk(
    model: LatencyModel, start: int, tokens: int, stages: int
) -> None:
    span = Span(start, start + tokens)
    pipeline = Pipeline(models=(model,) * stages, limits=plan_limits(4096))
    assume(tokens <= 4096 or tokens % 4096 >= 128)  # so that some fixed cut has no tiny tail
    assert plan(pipeline, span).predicted_seconds <= 1.01 * best_fixed(pipeline, span)


@settings(max_examples=15, deadline=None)
@given(
    models,
    st.integers(256, 32_768),
    st.lists(st.floats(0.5, 2.0), min_size=2, max_size=6),
)
def test_an_uneven_plan_is_at_most_one_percent_behind_the_best_fixed_chunk(
    model: LatencyModel, tokens: int, factors: list[float]
) -> None:
    span = Span(0, tokens)
    pipeline = Pipeline(
        models=tuple(scaled(model, factor) for factor in factors), limits=plan_limits(4096)
    )
    assume(tokens <= 4096 or tokens % 4096 >= 128)
    assert plan(pipeline, span).predicted_seconds <= 1.01 * best_fixed(pipeline, span)
