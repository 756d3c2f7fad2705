"""The settings that decide what enters a step, and the names of the policies among them.

One table of the config tree (`config.py`), apart because the scheduler knows these names too and
reads nothing else of the tree. Every process imports it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, cast, get_args

from atom_lite.settings import setting

BatchingPolicyName: TypeAlias = Literal[
    "request-level", "orca", "prefill-first", "unified", "stall-free", "slo"
]
_MILLISECONDS_PER_SECOND = 1000.0
# Bounds of objectives, of flags and of requests.
LEAST_SLO_MS = 0.1
MOST_SLO_MS = 3_600_000.0
WHOLE_PROMPT_POLICIES = ("request-level", "orca", "prefill-first")
CapacityPolicyName: TypeAlias = Literal[
    "auto", "max-utilization", "watermark", "no-evict", "max-length"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Objectives:
    """What a sequence is promised, in seconds; None is no promise.

    Attributes:
        ttft_seconds: from arrival to the first token.
        tbt_seconds: between two tokens.
    """

    ttft_seconds: float | None = None
    tbt_seconds: float | None = None

    @classmethod
    def from_milliseconds(cls, ttft_ms: float | None, tbt_ms: float | None) -> Objectives:
        """From the numbers of flags and requests."""
        return cls(
            ttft_seconds=None if ttft_ms is None else ttft_ms / _MILLISECONDS_PER_SECOND,
            tbt_seconds=None if tbt_ms is None else tbt_ms / _MILLISECONDS_PER_SECOND,
        )

    def over(self, default: Objectives) -> Objectives:
        """These, and the default's where there is none."""
        return Objectives(
            ttft_seconds=default.ttft_seconds if self.ttft_seconds is None else self.ttft_seconds,
            tbt_seconds=default.tbt_seconds if self.tbt_seconds is None else self.tbt_seconds,
        )


NO_OBJECTIVES = Objectives()


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """What a step may hold."""

    max_num_seqs: int = setting(64, "Most sequences that run at once.", minimum=1)
    max_num_batched_tokens: int | Literal["auto"] | None = setting(
        None,
        "Token budget of a step; auto: what --tbt-slo-ms leaves beside the decodes of the moment. "
        "Default: 512 on a CPU; on an accelerator 2048 for steps that hold decodes and up to 16384 "
        "for those that hold none.",
        minimum=1,
    )
    enable_chunked_prefill: bool = setting(
        True, "Split prompts over steps. Off: a prompt goes in one step, alone if need be."
    )
    batching_policy: str | None = setting(
        None,
        "What enters a step, and in which order: stall-free puts decodes first and prompt chunks "
        "in what is left; slo also sizes the chunks so that running streams keep their objectives; "
        "unified (vLLM V1), prefill-first (vLLM V0), orca and request-level are other servers' "
        "rules, the last three with whole prompts. Default: slo with an objective, else "
        "stall-free.",
        choices=get_args(BatchingPolicyName),
    )
    enable_hybrid_batching: bool = setting(
        True,
        "Policy stall-free: decodes and prompt chunks share steps. Off: they take turns.",
    )
    capacity_policy: str = setting(
        "auto",
        "KV blocks that a sequence must be sure of to start. no-evict: for all that it may "
        "generate, so none is ever preempted. auto: max-utilization; max-length for orca and "
        "request-level, watermark for prefill-first.",
        choices=get_args(CapacityPolicyName),
    )
    scheduling_policy: str = setting(
        "fcfs",
        "Order of the waiting queue: arrival, or the requests' priority field (lower first).",
        choices=("fcfs", "priority"),
    )
    tbt_slo_ms: float | None = setting(
        None,
        "Objective: most milliseconds between two tokens of a stream. Requests may bring their "
        "own. Default: none.",
        metavar="MS",
        minimum=LEAST_SLO_MS,
        maximum=MOST_SLO_MS,
    )
    ttft_slo_ms: float | None = setting(
        None,
        "Objective: most milliseconds from a request's arrival to its first token. Requests may "
        "bring their own. Default: none.",
        metavar="MS",
        minimum=LEAST_SLO_MS,
        maximum=MOST_SLO_MS,
    )

    @property
    def auto_budget(self) -> bool:
        """Whether the token budget follows the objective."""
        return self.max_num_batched_tokens == "auto"

    @property
    def objectives(self) -> Objectives:
        """What a sequence is promised that brings no objectives of its own."""
        return Objectives.from_milliseconds(self.ttft_slo_ms, self.tbt_slo_ms)

    @property
    def policy(self) -> BatchingPolicyName:
        """The batching policy in force."""
        if self.batching_policy is not None:
            return cast("BatchingPolicyName", self.batching_policy)
        has_objective = self.objectives != NO_OBJECTIVES
        return "slo" if has_objective and not self.auto_budget else "stall-free"


DEFAULT_SCHEDULER = SchedulerConfig()
