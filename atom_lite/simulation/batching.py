"""Batching policies by name, as one simulated run needs them; chunks are what the budget leaves.

    stall-free:512   Sarathi-Serve's rule in steps of at most 512 tokens
    orca             whole prompts; so prefill-first and request-level
    chunks-only:512  stall-free without hybrid batching: decodes and chunks take turns
    slo:4096         steps sized for the objective by the machine's own models

Runs in simulations only.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atom_lite.config_scheduling import Objectives
from atom_lite.errors import ConfigError
from atom_lite.scheduler.limits import SchedulerLimits
from atom_lite.simulation.policies import PolicySpec, informed_controller, parse_tokens
from atom_lite.simulation.simulator import Simulation
from atom_lite.simulation.stages import PipelineSpec
from atom_lite.simulation.workloads import OpenLoop

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atom_lite.simulation.measure import RunRecord
    from atom_lite.simulation.workloads import Request

DEFAULT_BUDGET_TOKENS = 2048
CHUNKS_ONLY = "chunks-only"
SLO = "slo"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingSpec:
    """One policy with its budget."""

    name: str
    budget_tokens: int = DEFAULT_BUDGET_TOKENS

    def __str__(self) -> str:
        """As it is written on a command line."""
        return f"{self.name}:{self.budget_tokens}"

    def changes(self, tbt_seconds: float) -> dict[str, Any]:
        """Fields of `SchedulerLimits` that make the policy."""
        if self.name == CHUNKS_ONLY:
            return {"batching_policy": "stall-free", "enable_hybrid_batching": False}
        if self.name == SLO:
            objectives = Objectives(tbt_seconds=tbt_seconds)
            return {"batching_policy": SLO, "objectives": objectives}
        return {"batching_policy": self.name}


def parse_batching(text: str) -> BatchingSpec:
    """`NAME[:BUDGET]`; what the name means is for the limits to check.

    Raises:
        ConfigError: the budget is no number of tokens.
    """
    name, colon, budget = text.partition(":")
    if not colon:
        return BatchingSpec(name=name)
    return BatchingSpec(name=name, budget_tokens=parse_tokens(budget))


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """All but the policy: the machine and what it can hold.

    Attributes:
        pipeline: the machine.
        kv_tokens: of its KV cache.
        max_num_seqs: most sequences that run at once.
        max_model_len: which Orca and request-level batching reserve for each.
    """

    pipeline: PipelineSpec
    kv_tokens: int
    max_num_seqs: int = 64
    max_model_len: int = 16384

    def limits(self, spec: BatchingSpec, tbt_seconds: float) -> SchedulerLimits:
        """The scheduler's numbers under a policy.

        Raises:
            ConfigError: an unknown policy, or numbers under which some sequence could never run.
        """
        budget = max(spec.budget_tokens, self.max_num_seqs)
        whole = spec.name == "prefill-first"
        limits = SchedulerLimits(
            max_num_seqs=self.max_num_seqs,
            decode_step_tokens=budget,
            prefill_step_tokens=max(budget, self.max_model_len) if whole else budget,
            max_model_len=self.max_model_len,
            block_size=16,
            num_blocks=max(1, self.kv_tokens // 16),
            eos_token_ids=frozenset(),
            enable_prefix_caching=False,
            pipeline_depth=self.pipeline.num_stages,
        )
        try:
            limits = dataclasses.replace(limits, **spec.changes(tbt_seconds))
        except TypeError as error:
            raise ConfigError(f"there is no batching policy {spec.name!r} here: {error}") from error
        limits.check()
        return limits


def run_batching(
    server: Server, spec: BatchingSpec, requests: Sequence[Request], *, tbt_seconds: float
) -> RunRecord:
    """One run from an empty server to the last token; the requests come at their own times."""
    limits = server.limits(spec, tbt_seconds)
    chunks = PolicySpec(name="fixed", budget_tokens=limits.prefill_step_tokens)
    controller = informed_controller(chunks, server.pipeline.models, limits)
    return Simulation(server.pipeline, limits, controller, OpenLoop(requests)).run()
