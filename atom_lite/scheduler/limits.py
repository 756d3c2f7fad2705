"""The numbers that the scheduler keeps to, all resolved.

Why: flags may say "decide at start"; by the time a scheduler exists everything is decided, so the
control plane never meets a None. The engine makes this from `Config`, the model and the worker.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from atom_lite.chunking.planner import DEFAULT_FLOOR_TOKENS
from atom_lite.config_scheduling import (
    NO_OBJECTIVES,
    WHOLE_PROMPT_POLICIES,
    BatchingPolicyName,
    CapacityPolicyName,
    Objectives,
)
from atom_lite.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLimits:
    """Budgets of a step, sizes of the KV cache and switches.

    A step that holds decodes keeps to `decode_step_tokens`, one without may take
    `prefill_step_tokens`. `pipeline_depth` is how many steps (microbatches) may be in flight.
    `least_chunk_tokens` is the size under which chunks of a plan gain nothing on this device.
    `objectives` are those of sequences that bring none of their own. With `auto_budget` a step that
    holds decodes keeps to what the TBT objective is worth, as far as `decode_step_tokens` go.
    """

    max_num_seqs: int
    decode_step_tokens: int
    prefill_step_tokens: int
    max_model_len: int
    block_size: int
    num_blocks: int
    eos_token_ids: frozenset[int]
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = True
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    pipeline_depth: int = 1
    least_chunk_tokens: int = DEFAULT_FLOOR_TOKENS
    batching_policy: BatchingPolicyName = "stall-free"
    capacity_policy: CapacityPolicyName = "auto"
    enable_hybrid_batching: bool = True
    objectives: Objectives = NO_OBJECTIVES
    auto_budget: bool = False

    @property
    def whole_prompts(self) -> bool:
        """Each prompt goes in one step: chunked prefill is off, or the policy knows none."""
        return not self.enable_chunked_prefill or self.batching_policy in WHOLE_PROMPT_POLICIES

    @property
    def watches_steps(self) -> bool:
        """Whether steps are sized by what earlier ones took."""
        return self.batching_policy == "slo" or self.auto_budget

    def check(self) -> None:
        """Refuse numbers with which some sequence could never be scheduled.

        Raises:
            ConfigError: at start, for the operator; names the flag, its value and the limit.
        """
        for name, value, least in (
            ("--max-num-seqs", self.max_num_seqs, 1),
            ("--block-size", self.block_size, 1),
            ("the number of KV blocks", self.num_blocks, 1),
            ("--max-model-len", self.max_model_len, 2),
            ("the number of microbatches in flight", self.pipeline_depth, 1),
        ):
            if value < least:
                raise ConfigError(f"{name} is {value} but must be at least {least}")
        for kind, budget in (
            ("that holds decodes", self.decode_step_tokens),
            ("without decodes", self.prefill_step_tokens),
        ):
            if budget < self.max_num_seqs:
                raise ConfigError(
                    f"--max-num-batched-tokens allows {budget} tokens in a step {kind} but must be "
                    f"at least --max-num-seqs, which is {self.max_num_seqs}: each running sequence "
                    "needs one token per step"
                )
        if self.prefill_step_tokens < self.decode_step_tokens:
            raise ConfigError(
                f"a step without decodes may take {self.prefill_step_tokens} tokens but must be "
                f"allowed at least the {self.decode_step_tokens} of a step that holds decodes"
            )
        self._check_policies()

    def _check_policies(self) -> None:
        for flag, name, names in (
            ("--scheduling-policy", self.scheduling_policy, ("fcfs", "priority")),
            ("--batching-policy", self.batching_policy, get_args(BatchingPolicyName)),
            ("--capacity-policy", self.capacity_policy, get_args(CapacityPolicyName)),
        ):
            if name not in names:
                raise ConfigError(f"{flag} is {name!r}, must be one of {', '.join(names)}")
        if not self.enable_hybrid_batching and self.batching_policy != "stall-free":
            raise ConfigError(
                "--no-enable-hybrid-batching goes with --batching-policy stall-free alone, and "
                f"--batching-policy is {self.batching_policy}"
            )

        if self.batching_policy == "slo" and not self.enable_chunked_prefill:
            raise ConfigError("--batching-policy slo needs --enable-chunked-prefill")
        if self.auto_budget and self.objectives.tbt_seconds is None:
            raise ConfigError("--max-num-batched-tokens auto needs an objective: --tbt-slo-ms")
        if self.auto_budget and self.batching_policy not in ("stall-free", "unified"):
            raise ConfigError(
                "--max-num-batched-tokens auto goes with --batching-policy stall-free or unified, "
                f"not with {self.batching_policy}"
            )

    @property
    def pool_tokens(self) -> int:
        """Tokens whose KV fits in the whole cache."""
        return self.num_blocks * self.block_size
