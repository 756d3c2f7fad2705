"""Machines and scenarios that the simulation tests share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atom_lite.chunking.controller import StaticController
from atom_lite.simulation.contest import Scenario, run_policy
from atom_lite.simulation.measure import Figures, measure
from atom_lite.simulation.policies import PolicySpec, informed_controller
from atom_lite.simulation.published import kimi
from atom_lite.simulation.simulator import Simulation
from atom_lite.simulation.stages import PipelineSpec
from atom_lite.simulation.workloads import Request
from tests.unit.chunking.samples import SERVED, scaled

if TYPE_CHECKING:
    from atom_lite.chunking.latency_model import LatencyModel

MAKESPAN = PolicySpec(name="makespan")
# A small model on CPU-like stages, with decodes that cost.
SMALL = SERVED.with_decodes(0.0004, 1e-7)


def machine(stages: int = 4, model: LatencyModel | None = None, **changes: Any) -> PipelineSpec:
    return PipelineSpec(models=(model or kimi(),) * stages, **changes)


def uneven(factors: tuple[float, ...], model: LatencyModel | None = None) -> PipelineSpec:
    return PipelineSpec(models=tuple(scaled(model or kimi(), factor) for factor in factors))


def fixed(budget: int) -> PolicySpec:
    return PolicySpec(name="fixed", budget_tokens=budget)


def one_prompt(tokens: int, pipeline: PipelineSpec, **changes: Any) -> Scenario:
    return Scenario(pipeline=pipeline, requests=(Request(prompt_tokens=tokens),), **changes)


def ttft(scenario: Scenario, policy: PolicySpec) -> float:
    """Seconds until the first token of the only prompt."""
    (record,) = run_policy(scenario, policy).sequences
    return record.ttft_seconds


def figures(scenario: Scenario, policy: PolicySpec) -> Figures:
    return measure(run_policy(scenario, policy))


def acknowledged_ttft(scenario: Scenario, policy: PolicySpec) -> float:
    """The same where every middle chunk is acknowledged by the last stage, as at ATOM."""
    limits = scenario.limits(policy)
    controller = informed_controller(policy, scenario.pipeline.models, limits)
    assert isinstance(controller, StaticController)
    controller.needs_acknowledgement = True
    run = Simulation(scenario.pipeline, limits, controller, scenario.workload()).run()
    return run.sequences[0].ttft_seconds
