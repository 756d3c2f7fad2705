"""Many long prompts at once: what a plan for one of them must know of the others."""

from __future__ import annotations

import dataclasses

import pytest

from atom_lite.chunking.latency_model import LatencyModel
from atom_lite.simulation.contest import Scenario, run_policy
from atom_lite.simulation.policies import PolicySpec
from atom_lite.simulation.workloads import Request, draw_requests, uniform
from tests.simulation.machines import MAKESPAN, figures, fixed, machine
from tests.unit.chunking.samples import SERVED

SIZES_TRIED_BY_HAND = (4096, 6144, 8192, 32768)


def throughput(scenario: Scenario, policy: PolicySpec) -> float:
    return figures(scenario, policy).prompt_tokens_per_second


def best_fixed(scenario: Scenario, sizes: tuple[int, ...] = SIZES_TRIED_BY_HAND) -> float:
    return max(throughput(scenario, fixed(size)) for size in sizes)


@pytest.mark.parametrize(
    ("prompt", "stages", "concurrency"),
    [
        (65536, 4, 4),
        (65536, 4, 16),
        (131072, 4, 4),
        (65536, 2, 4),
        pytest.param(131072, 4, 16, marks=pytest.mark.full),
        pytest.param(65536, 2, 16, marks=pytest.mark.full),
    ],
)
def test_concurrent_long_prompts_lose_no_throughput_to_the_best_fixed_chunk(
    prompt: int, stages: int, concurrency: int
) -> None:
    scenario = Scenario(
        pipeline=machine(stages),
        requests=(Request(prompt_tokens=prompt),) * 2 * concurrency,
        concurrency=concurrency,
        enable_prefix_caching=False,
    )
    assert throughput(scenario, MAKESPAN) >= 0.98 * best_fixed(scenario)


@pytest.mark.parametrize("concurrency", [4, pytest.param(16, marks=pytest.mark.full)])
def test_nor_do_prompts_of_mixed_length(concurrency: int) -> None:
    scenario = Scenario(
        pipeline=machine(4),
        requests=tuple(draw_requests(3 * concurrency, 0, uniform(16384, 131072), lambda _rng: 1)),
        concurrency=concurrency,
        enable_prefix_caching=False,
    )
    assert throughput(scenario, MAKESPAN) >= 0.98 * best_fixed(scenario)


@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize("concurrency", [2, 3, 4, 8])
def test_nor_do_short_prompts_of_mixed_length(stages: int, concurrency: int) -> None:
    small = LatencyModel.from_milliseconds(a=2.7e-4, b=1.2, c=2.5, gamma=7e-3)
    scenario = Scenario(
        pipeline=machine(stages, small),
        requests=tuple(draw_requests(40, 0, uniform(100, 1500), lambda _rng: 1)),
        concurrency=concurrency,
        max_model_len=8192,
        enable_prefix_caching=False,
    )
    ours = throughput(scenario, PolicySpec(name="makespan", budget_tokens=512))
    assert ours >= 0.95 * best_fixed(scenario, (128, 256, 512))


@pytest.mark.parametrize(("stages", "concurrency"), [(2, 16), (4, 16), (8, 16), (4, 32)])
def test_prompts_that_cost_less_than_a_step_share_steps(stages: int, concurrency: int) -> None:
    # Where a step costs 26 ms whatever it holds, one prompt of 2000 tokens in each wastes two
    # thirds of the stages' time.
    scenario = Scenario(
        pipeline=machine(stages),
        requests=(Request(prompt_tokens=2000),) * 3 * concurrency,
        concurrency=concurrency,
        max_model_len=65536,
        enable_prefix_caching=False,
    )
    best = best_fixed(scenario, (2048, 4096, 8192, 16384))
    assert throughput(scenario, MAKESPAN) >= 0.9 * best


@pytest.mark.parametrize("stages", [2, 4])
def test_prompts_that_fill_the_pipeline_keep_all_stages_busy(stages: int) -> None:
    scenario = Scenario(
        pipeline=machine(stages, SERVED),
        requests=(Request(prompt_tokens=8192),) * 40,
        concurrency=20,
        enable_prefix_caching=False,
    )
    run = run_policy(scenario, PolicySpec(name="makespan", budget_tokens=8192))
    ends = sorted(record.token_seconds[0] for record in run.sequences)
    busy = sum(i.duration_seconds for i in run.intervals if i.stage == 0) / len(ends)
    assert (ends[-5] - ends[4]) / (len(ends) - 9) == pytest.approx(busy, rel=0.02)


def test_a_lone_prompt_after_a_crowd_is_planned_as_a_lone_prompt() -> None:
    crowd = Scenario(
        pipeline=machine(4),
        requests=(Request(prompt_tokens=65536),) * 4,
        concurrency=4,
        enable_prefix_caching=False,
    )
    alone = dataclasses.replace(crowd, requests=crowd.requests[:1])
    late = Request(prompt_tokens=65536, arrival_seconds=1000.0)
    both = dataclasses.replace(crowd, requests=(*crowd.requests, late), rate_per_second=1e-3)
    lone = run_policy(alone, MAKESPAN).chunk_sizes(0)
    assert run_policy(both, MAKESPAN).chunk_sizes(4) == lone
    assert run_policy(crowd, MAKESPAN).chunk_sizes(1) != lone


def test_prompts_that_want_one_token_never_shrink_each_others_steps() -> None:
    scenario = Scenario(
        pipeline=machine(4),
        requests=(Request(prompt_tokens=65536),) * 8,
        concurrency=4,
        enable_prefix_caching=False,
    )
    with_decode_budget = dataclasses.replace(scenario, decode_step_tokens=2048)
    assert throughput(with_decode_budget, fixed(16384)) == throughput(scenario, fixed(16384))
