"""Streams beside a long prompt, and the real scheduler's rules under load, checked read by read."""

from __future__ import annotations

import pytest

from atom_lite.simulation.contest import Scenario, run_policy
from atom_lite.simulation.measure import RunRecord, spread
from atom_lite.simulation.policies import PolicySpec, informed_controller
from atom_lite.simulation.simulator import Simulation
from atom_lite.simulation.workloads import (
    ClosedLoop,
    OpenLoop,
    Request,
    draw_requests,
    uniform,
)
from tests.simulation.machines import MAKESPAN, SMALL, fixed, machine

NUM_STREAMS = 4
STREAMS = [Request(prompt_tokens=64, output_tokens=300)] * NUM_STREAMS
LONG = Request(prompt_tokens=8192, arrival_seconds=1.0)
STAGES = 2


def gaps_during_prefill(run: RunRecord) -> list[float]:
    """Gaps of the streams that end while the long prompt waits for its first token."""
    *streams, long = sorted(run.sequences, key=lambda record: record.prompt_tokens)
    start, end = long.arrival_seconds, long.token_seconds[0]
    return [
        gap
        for record in streams
        for gap, at in zip(record.gaps_seconds, record.token_seconds[1:], strict=True)
        if start < at <= end
    ]


def beside_a_long_prompt(policy: PolicySpec, decode_budget: int | None) -> RunRecord:
    scenario = Scenario(
        pipeline=machine(STAGES, SMALL), requests=(), decode_step_tokens=decode_budget
    )
    requests = [*STREAMS, LONG]
    limits = Scenario(
        pipeline=scenario.pipeline, requests=tuple(requests), decode_step_tokens=decode_budget
    ).limits(policy)
    controller = informed_controller(policy, scenario.pipeline.models, limits)
    return Simulation(scenario.pipeline, limits, controller, OpenLoop(requests)).run()


@pytest.mark.parametrize("policy", [MAKESPAN, fixed(2048)], ids=str)
def test_gaps_beside_a_long_prompt_are_bounded_by_the_budget(policy: PolicySpec) -> None:
    gaps = gaps_during_prefill(beside_a_long_prompt(policy, 512))
    assert len(gaps) > 20
    # A token comes back after its microbatch has passed every stage, behind one on each.
    worst_step = SMALL.chunk_seconds(LONG.prompt_tokens, 512) + NUM_STREAMS * 0.001
    assert max(gaps) <= 2 * STAGES * worst_step
    unbounded = gaps_during_prefill(beside_a_long_prompt(fixed(8192), None))
    assert max(unbounded) > 3 * max(gaps)


def test_a_plan_stalls_streams_no_more_than_the_fixed_chunk_of_the_same_budget() -> None:
    planned = spread(gaps_during_prefill(beside_a_long_prompt(MAKESPAN, 512)))
    same = spread(gaps_during_prefill(beside_a_long_prompt(fixed(512), 512)))
    assert planned.p99 <= 1.2 * same.p99


@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("policy", [MAKESPAN, fixed(64)], ids=str)
def test_every_kv_read_is_the_sequences_own_under_short_blocks(
    policy: PolicySpec, stages: int
) -> None:
    requests = draw_requests(
        40, 3, uniform(1, 200), uniform(1, 40), num_prefixes=3, prefix_tokens=80
    )
    scenario = Scenario(
        pipeline=machine(stages, SMALL, hop_seconds=0.001, noise=0.3, seed=1),
        requests=tuple(requests),
        num_blocks=24,
        max_num_seqs=8,
        decode_step_tokens=64,
    )
    limits = scenario.limits(policy)
    controller = informed_controller(policy, scenario.pipeline.models, limits)
    workload = ClosedLoop(requests, 10)
    run = Simulation(scenario.pipeline, limits, controller, workload, audit=True).run()
    assert [len(r.token_seconds) for r in run.sequences] == [r.output_tokens for r in requests]
    assert sum(r.num_preemptions for r in run.sequences) > 0
    assert sum(r.cached_tokens for r in run.sequences) > 0


def test_a_seed_decides_everything() -> None:
    def run(seed: int) -> RunRecord:
        return run_policy(
            Scenario(
                pipeline=machine(3, SMALL, noise=0.1, seed=seed),
                requests=tuple(draw_requests(12, seed, uniform(100, 4000), uniform(1, 20))),
                rate_per_second=5.0,
                variation=2.0,
                seed=seed,
            ),
            MAKESPAN,
        )

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_a_request_that_can_never_fit_is_refused_and_the_rest_is_served() -> None:
    scenario = Scenario(
        pipeline=machine(2, SMALL),
        requests=(Request(prompt_tokens=4000), Request(prompt_tokens=100, output_tokens=3)),
        num_blocks=20,
    )
    refused, served = run_policy(scenario, fixed(512)).sequences
    assert refused.error is not None and "KV cache holds 320" in refused.error
    assert len(served.token_seconds) == 3
