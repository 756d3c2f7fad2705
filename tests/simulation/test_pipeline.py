"""What fills a pipeline and what leaves it empty: depth, hops, groups, uneven stages."""

from __future__ import annotations

import dataclasses
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import pytest

from atom_lite.chunking.flow_shop import makespan_seconds
from atom_lite.chunking.latency_model import LatencyModel
from atom_lite.simulation.contest import Scenario, run_policy
from atom_lite.simulation.measure import RunRecord, measure
from atom_lite.simulation.policies import PolicySpec
from atom_lite.simulation.workloads import Request
from tests.simulation.machines import (
    MAKESPAN,
    SMALL,
    acknowledged_ttft,
    figures,
    fixed,
    machine,
    one_prompt,
    ttft,
    uneven,
)

if TYPE_CHECKING:
    from atom_lite.simulation.stages import PipelineSpec

EVERY_POLICY = [
    MAKESPAN,
    fixed(2048),
    PolicySpec(name="atom", budget_tokens=8192),
    PolicySpec(name="sglang", budget_tokens=8192),
    PolicySpec(name="linear", budget_tokens=8192),
]


def recursion(pipeline: PipelineSpec, sizes: list[int]) -> float:
    """The exact flow-shop time of chunks of these sizes."""
    starts = list(accumulate(sizes, initial=0))
    return makespan_seconds(
        [
            [model.chunk_seconds(*shape) for shape in zip(starts, sizes, strict=False)]
            for model in pipeline.models
        ]
    )


@pytest.mark.parametrize("policy", EVERY_POLICY, ids=str)
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_a_sole_prefill_takes_exactly_the_flow_shop_time(policy: PolicySpec, stages: int) -> None:
    scenario = one_prompt(40_000, machine(stages))
    run = run_policy(scenario, policy)
    sizes = run.chunk_sizes(0)
    assert sum(sizes) == 40_000
    assert run.sequences[0].ttft_seconds == pytest.approx(recursion(scenario.pipeline, sizes))


def test_no_stage_runs_two_microbatches_at_once_nor_before_they_arrive() -> None:
    pipeline = machine(3, hop_seconds=0.004, noise=0.2, seed=5)
    run = run_policy(one_prompt(30_000, pipeline), fixed(2048))
    for stage in range(3):
        boxes = [box for box in run.intervals if box.stage == stage]
        for earlier, later in pairwise(boxes):
            assert earlier.end_seconds <= later.start_seconds
            assert earlier.step_id < later.step_id
    by_step = {(box.stage, box.step_id): box for box in run.intervals}
    for (stage, step_id), box in by_step.items():
        if stage > 0:
            before = by_step[stage - 1, step_id]
            assert box.start_seconds >= before.end_seconds + 0.004 - 1e-12


def decode_only(num_sequences: int, stages: int, **changes: object) -> RunRecord:
    requests = (Request(prompt_tokens=16, output_tokens=200),) * num_sequences
    scenario = Scenario(
        pipeline=machine(stages, SMALL), requests=requests, concurrency=num_sequences
    )
    return run_policy(scenario, fixed(2048))


@pytest.mark.parametrize("stages", [2, 4])
def test_decode_only_load_runs_at_full_depth_with_every_stage_busy(stages: int) -> None:
    run = decode_only(32, stages)
    boxes = [box for box in run.intervals if box.stage == 0]
    steady = boxes[len(boxes) // 4 : -len(boxes) // 4]
    assert {box.num_tokens for box in steady} == {32 // stages}, "groups of equal size"
    for stage in range(stages):
        on_stage = [box for box in run.intervals if box.stage == stage]
        middle = on_stage[len(on_stage) // 4 : -len(on_stage) // 4]
        window = middle[-1].end_seconds - middle[0].start_seconds
        assert sum(box.duration_seconds for box in middle) > 0.98 * window


def test_a_lone_stream_keeps_one_stage_busy_at_a_time() -> None:
    assert measure(decode_only(1, 4)).busy_share == pytest.approx(0.25, abs=0.01)


def test_one_step_less_in_flight_than_stages_costs() -> None:
    full = acknowledged_ttft(one_prompt(131072, machine(4)), MAKESPAN)
    shallow = acknowledged_ttft(one_prompt(131072, machine(4), depth=3), MAKESPAN)
    assert 1.06 <= shallow / full <= 1.35


# Equal microbatches of 0.1 s, and hops of a tenth of it.
EVEN = LatencyModel.from_milliseconds(a=0.0, b=0.1, c=0.0)
EVEN_CHUNKS = fixed(1000)
FREE_HOPS = one_prompt(400_000, machine(4, EVEN))
SLOW_HOPS = one_prompt(400_000, machine(4, EVEN, hop_seconds=0.01))


def test_with_acknowledgement_a_hop_of_a_tenth_of_a_stage_costs_nine_percent() -> None:
    free = acknowledged_ttft(FREE_HOPS, EVEN_CHUNKS)
    assert acknowledged_ttft(SLOW_HOPS, EVEN_CHUNKS) / free == pytest.approx(1.09, abs=0.01)
    deeper = dataclasses.replace(SLOW_HOPS, depth=5)
    assert acknowledged_ttft(deeper, EVEN_CHUNKS) / free == pytest.approx(1.0, abs=0.005)


def test_without_it_a_chunk_runs_ahead_and_hops_cost_nothing() -> None:
    free = ttft(FREE_HOPS, EVEN_CHUNKS)
    assert free == pytest.approx(acknowledged_ttft(FREE_HOPS, EVEN_CHUNKS))
    assert ttft(SLOW_HOPS, EVEN_CHUNKS) / free == pytest.approx(1.0, abs=0.005)


@pytest.mark.parametrize(
    "factors", [(1.0, 1.0, 1.0, 1.3), (1.3, 1.0, 1.0, 1.0), (1.0, 1.0, 1.0, 16 / 15)]
)
def test_uneven_stages_gain_from_a_plan_that_leans(factors: tuple[float, ...]) -> None:
    scenario = one_prompt(32768, uneven(factors))
    equal_latency = min(
        ttft(
            scenario,
            PolicySpec(name="atom", budget_tokens=base, smooth_factor=1.0, min_chunk_tokens=64),
        )
        for base in range(4096, 16384 + 1, 512)
    )
    assert 0.90 <= ttft(scenario, MAKESPAN) / equal_latency <= 0.98


def test_bubbles_and_busy_time_add_up_to_the_run() -> None:
    result = figures(one_prompt(65536, machine(4)), MAKESPAN)
    for busy, bubble in zip(result.busy_seconds, result.bubble_seconds, strict=True):
        assert busy + bubble == pytest.approx(result.duration_seconds)
    assert result.duration_seconds == pytest.approx(result.ttft_seconds.mean)
