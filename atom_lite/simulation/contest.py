"""One scenario, many policies: every run on a fresh scheduler, with the same requests and noise.

A scenario says everything but the policy. Limits follow the server's: a policy's budget bounds
all steps, unless the scenario has one for those that hold decodes. Runs in simulations only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from atom_lite.errors import ConfigError
from atom_lite.scheduler.limits import SchedulerLimits
from atom_lite.simulation.measure import Figures, RunRecord, measure
from atom_lite.simulation.policies import PolicySpec, informed_controller, learning_controller
from atom_lite.simulation.simulator import Simulation, run_startup_sweep
from atom_lite.simulation.stages import PipelineSpec
from atom_lite.simulation.workloads import ClosedLoop, Request, with_arrivals

if TYPE_CHECKING:
    from atom_lite.chunking.controller import ChunkingController
    from atom_lite.simulation.policies import Contest
    from atom_lite.simulation.workloads import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """All but the policy.

    Attributes:
        pipeline: the machine.
        requests: in order of arrival.
        concurrency: so many at once, where there is no rate.
        rate_per_second: arrivals at random times instead.
        variation: of the gaps between them, see `with_arrivals`.
        learns: policies start without a model, as in the server; else they know the true ones.
        depth: microbatches in flight; None for one per stage.
        decode_step_tokens: budget of a step that holds decodes; None for the policy's, which is
            what --max-num-batched-tokens does.
        max_num_seqs: most sequences that run at once.
        max_model_len: tokens of any sequence; None for the longest request's. It bounds chunks.
        block_size: of the KV cache.
        num_blocks: of the KV cache; None for enough.
        enable_prefix_caching: off saves hashing every prompt.
        seed: of the arrivals.
    """

    pipeline: PipelineSpec
    requests: tuple[Request, ...]
    concurrency: int = 1
    rate_per_second: float | None = None
    variation: float = 1.0
    learns: bool = False
    depth: int | None = None
    decode_step_tokens: int | None = None
    max_num_seqs: int = 64
    max_model_len: int | None = None
    block_size: int = 16
    num_blocks: int | None = None
    enable_prefix_caching: bool = True
    seed: int = 0

    def workload(self) -> Workload:
        """A fresh copy of the load."""
        if self.rate_per_second is not None:
            return with_arrivals(
                self.requests, self.rate_per_second, self.seed, variation=self.variation
            )
        return ClosedLoop(self.requests, self.concurrency)

    def limits(self, spec: PolicySpec) -> SchedulerLimits:
        """The scheduler's numbers under a policy.

        Raises:
            ConfigError: no requests, or numbers under which some sequence could never run.
        """
        if not self.requests:
            raise ConfigError("the scenario has 0 requests, must have at least 1")
        lengths = [request.prompt_tokens + request.output_tokens for request in self.requests]
        blocks = self.num_blocks
        if blocks is None:
            running = sorted(lengths, reverse=True)[: self.max_num_seqs]
            blocks = sum(-(-length // self.block_size) + 1 for length in running)
        decode_budget = spec.budget_tokens
        if self.decode_step_tokens is not None:
            decode_budget = min(self.decode_step_tokens, spec.budget_tokens)
        limits = SchedulerLimits(
            max_num_seqs=min(self.max_num_seqs, decode_budget),
            decode_step_tokens=decode_budget,
            prefill_step_tokens=spec.budget_tokens,
            max_model_len=max(lengths) if self.max_model_len is None else self.max_model_len,
            block_size=self.block_size,
            num_blocks=blocks,
            eos_token_ids=frozenset(),
            enable_prefix_caching=self.enable_prefix_caching,
            pipeline_depth=self.pipeline.num_stages if self.depth is None else self.depth,
        )
        limits.check()
        return limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A policy's run, the best one where it was tuned in hindsight."""

    policy: PolicySpec
    run: RunRecord
    figures: Figures


def run_policy(scenario: Scenario, spec: PolicySpec) -> RunRecord:
    """One run from an empty server to the last token."""
    limits = scenario.limits(spec)
    if not scenario.learns:
        controller = informed_controller(spec, scenario.pipeline.models, limits)
        return _run(scenario, limits, controller)
    controller = learning_controller(spec, scenario.pipeline.num_stages, limits)
    run_startup_sweep(controller, scenario.pipeline)
    return _run(scenario, limits, controller)


def run_contest(scenario: Scenario, contest: Contest) -> Entry:
    """Every candidate, and the one with the lowest mean TTFT of them."""
    entries = []
    for spec in contest.candidates:
        run = run_policy(scenario, spec)
        entries.append(Entry(policy=spec, run=run, figures=measure(run)))
    return min(entries, key=lambda entry: entry.figures.ttft_seconds.mean)


def _run(scenario: Scenario, limits: SchedulerLimits, controller: ChunkingController) -> RunRecord:
    return Simulation(scenario.pipeline, limits, controller, scenario.workload()).run()
