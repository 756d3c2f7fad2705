"""Policy slo and the automatic budget: the real scheduler, a virtual clock, a known machine.

Eight streams decode, at about 12 ms a token, when a prompt of 6000 tokens arrives.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from atom_lite.chunking.controller import StaticController
from atom_lite.chunking.latency_model import LatencyModel
from atom_lite.chunking.planners.fixed import FixedPlanner
from atom_lite.config_scheduling import Objectives
from atom_lite.scheduler.limits import SchedulerLimits
from atom_lite.simulation.policies import PolicySpec, learning_controller
from atom_lite.simulation.simulator import Simulation, run_startup_sweep
from atom_lite.simulation.stages import PipelineSpec
from atom_lite.simulation.workloads import OpenLoop, Request

if TYPE_CHECKING:
    from atom_lite.messages import EngineStats
    from atom_lite.simulation.measure import RunRecord

MODEL = LatencyModel.from_milliseconds(a=2e-6, b=0.05, c=10.0).with_decodes(2e-4, 1e-7)
HALF = LatencyModel.from_milliseconds(a=1e-6, b=0.025, c=5.0).with_decodes(1e-4, 5e-8)
NUM_STREAMS = 8
STREAMS = [Request(prompt_tokens=16, output_tokens=200) for _ in range(NUM_STREAMS)]
LONG = Request(prompt_tokens=6000, output_tokens=2, arrival_seconds=1.0)
SHORTS = [
    Request(prompt_tokens=60, output_tokens=2, arrival_seconds=1.1 + 0.03 * index)
    for index in range(20)
]
LIMITS = SchedulerLimits(
    max_num_seqs=40,
    decode_step_tokens=512,
    prefill_step_tokens=512,
    max_model_len=8192,
    block_size=16,
    num_blocks=40 * 512,
    eos_token_ids=frozenset(),
    batching_policy="slo",
)


def simulate(
    requests: list[Request],
    tbt_seconds: float,
    *,
    machine: tuple[LatencyModel, ...] = (MODEL,),
    believed: tuple[LatencyModel, ...] | None = None,
    **changes: Any,
) -> tuple[RunRecord, EngineStats]:
    """`believed`: the models that the policy is given; by default the machine's own."""
    limits = dataclasses.replace(
        LIMITS,
        objectives=Objectives(tbt_seconds=tbt_seconds),
        pipeline_depth=len(machine),
        **changes,
    )
    known = machine if believed is None else believed
    controller = StaticController(FixedPlanner(), "fixed", known)
    simulation = Simulation(PipelineSpec(models=machine), limits, controller, OpenLoop(requests))
    return simulation.run(), simulation.scheduler.stats()


def longest_gap(run: RunRecord) -> float:
    return max(gap for stream in run.sequences[:NUM_STREAMS] for gap in stream.gaps_seconds)


@pytest.mark.parametrize("tbt", [0.02, 0.03, 0.04])
def test_a_long_prompt_takes_what_the_objective_leaves_and_never_more(tbt: float) -> None:
    run, stats = simulate([*STREAMS, LONG], tbt)
    gap = longest_gap(run)
    assert 0.8 * tbt < gap <= tbt
    assert (stats.deadline_overruns, stats.static_budget_steps) == (0, 0)
    looser, _ = simulate([*STREAMS, LONG], 1.3 * tbt)
    assert looser.sequences[-1].ttft_seconds < run.sequences[-1].ttft_seconds


def test_over_two_stages_the_steps_between_two_tokens_share_the_objective() -> None:
    run, stats = simulate([*STREAMS, LONG], 0.03, machine=(HALF, HALF))
    gaps = sorted(gap for s in run.sequences[:NUM_STREAMS] for gap in s.gaps_seconds)
    assert gaps[int(0.99 * len(gaps))] <= 0.03
    assert stats.deadline_overruns == 0


def test_short_prompts_pass_a_long_one_and_it_still_ends_in_time() -> None:
    alone, _ = simulate([*STREAMS, LONG], 0.03)
    run, _ = simulate([*STREAMS, LONG, *SHORTS], 0.03)
    shorts = run.sequences[NUM_STREAMS + 1 :]
    assert max(record.ttft_seconds for record in shorts) <= 3 * 0.03
    shared = run.sequences[NUM_STREAMS].ttft_seconds
    assert shared < 1.5 * alone.sequences[NUM_STREAMS].ttft_seconds
    assert longest_gap(run) <= 0.03


def test_a_stream_of_short_prompts_does_not_starve_a_long_one() -> None:
    """More short prompts than the machine has time for: the long one still gets its half."""
    many = [
        Request(prompt_tokens=200, output_tokens=1, arrival_seconds=1.0 + 0.008 * index)
        for index in range(600)
    ]
    run, _ = simulate([*STREAMS, LONG, *many], 0.03)
    assert run.sequences[NUM_STREAMS].ttft_seconds < 4.8
    assert run.sequences[-1].token_seconds[0] > 1.0 + run.sequences[NUM_STREAMS].ttft_seconds


def test_prefill_goes_on_where_decodes_alone_are_over_the_objective() -> None:
    run, stats = simulate([*STREAMS, LONG], 0.011)
    assert stats.deadline_overruns > 10
    assert run.sequences[-1].token_seconds


@pytest.mark.parametrize(
    "believed",
    [
        (),
        # Steps take thrice what it says, and the factor that makes up for that ends at two.
        (LatencyModel.from_milliseconds(a=6e-7, b=0.015, c=3.0),),
    ],
)
def test_without_a_model_to_trust_a_static_budget_keeps_the_objective(
    believed: tuple[LatencyModel, ...],
) -> None:
    run, stats = simulate([*STREAMS, LONG], 0.03, believed=believed)
    assert stats.static_budget_steps > 5
    assert any("static budget" in notice for notice in run.notices)
    late = [g for s in run.sequences[:NUM_STREAMS] for g in s.gaps_seconds if g > 0.03]
    assert len(late) <= 10 * NUM_STREAMS  # before the first steps have told


def test_an_automatic_budget_is_what_the_objective_is_worth() -> None:
    run, _ = simulate([*STREAMS, LONG], 0.03, batching_policy="stall-free", auto_budget=True)
    fixed, _ = simulate([*STREAMS, LONG], 0.03, batching_policy="stall-free")
    assert longest_gap(run) <= 0.03 < longest_gap(fixed)
    assert run.sequences[-1].ttft_seconds < 2 * fixed.sequences[-1].ttft_seconds


@pytest.mark.parametrize("machine", [(MODEL,), (HALF, HALF)], ids=["1 stage", "2 stages"])
def test_a_model_learned_from_the_servers_own_steps_keeps_the_objective(
    machine: tuple[LatencyModel, ...],
) -> None:
    spec = PipelineSpec(models=machine, noise=0.05)
    objectives = Objectives(tbt_seconds=0.03)
    limits = dataclasses.replace(LIMITS, objectives=objectives, pipeline_depth=len(machine))
    policy = PolicySpec(name="fixed", budget_tokens=limits.prefill_step_tokens)
    controller = learning_controller(policy, len(machine), limits)
    assert "installed" in run_startup_sweep(controller, spec)[0]
    simulation = Simulation(spec, limits, controller, OpenLoop([*STREAMS, LONG]))
    run = simulation.run()
    gaps = sorted(gap for s in run.sequences[:NUM_STREAMS] for gap in s.gaps_seconds)
    assert gaps[int(0.99 * len(gaps))] <= 1.1 * 0.03
    assert simulation.scheduler.stats().static_budget_steps == 0
