"""Config plus what the worker learned -> the scheduler's numbers and the frontend's EngineReady."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Literal, cast

from atom_lite.chunking.planner import DEFAULT_FLOOR_TOKENS
from atom_lite.config import KV_CONSUMER
from atom_lite.messages import EngineReady
from atom_lite.scheduler.scheduler import SchedulerLimits

if TYPE_CHECKING:
    from atom_lite.config import Config
    from atom_lite.config_scheduling import CapacityPolicyName
    from atom_lite.worker.runner import RunnerInfo

logger = logging.getLogger(__name__)

# Tokens of a step that holds decodes, and of one that holds none, when no flag says otherwise.
# A CPU gains nothing from larger steps (4096 tokens of SmolLM2-135M on two Zen 3 cores take 13.9,
# 15.6, 15.2, 15.4 s in steps of 256, 512, 1024, 2048), and a newcomer waits for the running one.
CPU_BUDGETS = (512, 512)
# On a CPU a step's time is linear down to 64 tokens (measured per layer: 4 ms and 0.1 ms a token),
# and many stages want chunks that small: 128 at least costs 4 stages 1 % and 8 stages 4 % of an 8K
# prompt. Two stages never do, so they keep the floor, which is kind to a fit that misses the 4 ms.
_CPU_LEAST_CHUNK_TOKENS = 64
_STAGES_OF_LARGER_CHUNKS = 2
_ACCELERATOR_BUDGETS = (2048, 16384)


def resolve_stages(config: Config, num_accelerators: int) -> int:
    """How many pipeline stages the flags ask for.

    Dynamic chunking without an explicit size takes one stage per accelerator, or two on a CPU; so
    it does not where the role of a decode instance turns it off.
    """
    if config.parallel.pipeline_parallel_size is not None:
        return config.parallel.pipeline_parallel_size
    if not config.chunking.enable_dynamic_chunking or config.transfer.kv_role == KV_CONSUMER:
        return 1
    if num_accelerators == 1:
        logger.warning(
            "dynamic chunking keeps fixed chunks: one accelerator makes one stage, and there is no "
            "pipeline to keep busy; --pipeline-parallel-size says otherwise"
        )
    return num_accelerators or 2


def scheduler_limits(config: Config, info: RunnerInfo) -> SchedulerLimits:
    """The numbers that one run of the scheduler keeps to.

    Raises:
        ConfigError: numbers under which some sequence could never run (exit 2).
    """
    on_cpu = info.device == "cpu"
    budgets = CPU_BUDGETS if on_cpu else _ACCELERATOR_BUDGETS
    if config.scheduler.auto_budget:
        budgets = (budgets[1],) * 2  # the objective bounds steps beside streams
    elif isinstance(config.scheduler.max_num_batched_tokens, int):
        budgets = (config.scheduler.max_num_batched_tokens,) * 2
    limits = SchedulerLimits(
        max_num_seqs=config.scheduler.max_num_seqs,
        decode_step_tokens=budgets[0],
        prefill_step_tokens=budgets[1],
        max_model_len=info.max_model_len,
        block_size=config.cache.block_size,
        num_blocks=info.num_blocks,
        eos_token_ids=frozenset(info.eos_token_ids),
        enable_chunked_prefill=config.scheduler.enable_chunked_prefill,
        enable_prefix_caching=config.cache.enable_prefix_caching,
        pipeline_depth=info.num_stages,
        least_chunk_tokens=least_chunk_tokens(info.num_stages, on_cpu=on_cpu),
        batching_policy=config.scheduler.policy,
        auto_budget=config.scheduler.auto_budget,
        objectives=config.scheduler.objectives,
        capacity_policy=cast("CapacityPolicyName", config.scheduler.capacity_policy),
        enable_hybrid_batching=config.scheduler.enable_hybrid_batching,
        scheduling_policy=cast("Literal['fcfs', 'priority']", config.scheduler.scheduling_policy),
    )
    limits.check()  # before the startup sweep, which takes seconds
    return limits


def least_chunk_tokens(num_stages: int, *, on_cpu: bool) -> int:
    """The floor of planned chunks."""
    if on_cpu and num_stages > _STAGES_OF_LARGER_CHUNKS:
        return _CPU_LEAST_CHUNK_TOKENS
    return DEFAULT_FLOOR_TOKENS


def engine_ready(limits: SchedulerLimits, info: RunnerInfo) -> EngineReady:
    """What the frontend is told at start."""
    return EngineReady(
        vocab_size=info.vocab_size,
        max_model_len=limits.max_model_len,
        eos_token_ids=sorted(limits.eos_token_ids),
        block_size=limits.block_size,
        num_blocks=limits.num_blocks,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.decode_step_tokens,
        device=info.device,
        dtype=info.dtype,
        architecture=info.architecture,
        default_sampling=info.default_sampling,
        memory_bytes=info.memory_bytes | {"activations": _activation_bytes(limits, info)},
        num_stages=info.num_stages,
    )


def _activation_bytes(limits: SchedulerLimits, info: RunnerInfo) -> int:
    """Most that a step takes beside weights and cache: its tokens' numbers, its rows' logits."""
    tokens = max(limits.prefill_step_tokens, limits.decode_step_tokens)
    logits = 4 * limits.max_num_seqs * info.vocab_size  # float32
    return tokens * info.activation_bytes_per_token + logits
