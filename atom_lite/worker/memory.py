"""How many KV blocks the pool has, and how long a sequence may then be.

Pure arithmetic on injected numbers, apart from `available_bytes`, which asks the machine. Runs once
per stage at start, after the weights are loaded. The pool is allocated untouched, so on a CPU its
size is a limit and not a cost: resident memory follows use.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import torch

from atom_lite.errors import ConfigError

if TYPE_CHECKING:
    from atom_lite.config import CacheConfig
    from atom_lite.models.spec import ModelSpec

logger = logging.getLogger(__name__)

CPU_SHARE_OF_FREE_MEMORY = 0.25
CPU_MOST_BYTES = 2 << 30
UNLIMITED_BYTES = 1 << 62
CGROUP_ROOT = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolDemand:
    """What is known when the pool is sized.

    `available_bytes` are free on the device after the weights; `max_model_len` is the flag's value
    or else the model's own limit.
    """

    bytes_per_block: int
    max_num_seqs: int
    max_model_len: int
    available_bytes: int
    on_cpu: bool


def num_pool_blocks(cache: CacheConfig, demand: PoolDemand) -> int:
    """The pool's size in blocks: by a flag, else from the free memory.

    Raises:
        ConfigError: a flag is out of range, or there is no memory for even one block.
    """
    if cache.num_gpu_blocks_override is not None:
        if cache.num_gpu_blocks_override < 1:
            raise ConfigError(
                f"--num-gpu-blocks-override {cache.num_gpu_blocks_override}: must be at least 1"
            )
        return cache.num_gpu_blocks_override
    if cache.kv_cache_memory_bytes is not None:
        num_blocks = cache.kv_cache_memory_bytes // demand.bytes_per_block
        if num_blocks < 1:
            raise ConfigError(
                f"--kv-cache-memory-bytes {cache.kv_cache_memory_bytes}: less than one KV block of "
                f"{cache.block_size} tokens, which takes {demand.bytes_per_block} bytes"
            )
        return num_blocks
    budget = _cpu_budget(cache, demand) if demand.on_cpu else _accelerator_budget(cache, demand)
    num_blocks = budget // demand.bytes_per_block
    if num_blocks < 1:
        raise ConfigError(
            f"no memory for the KV cache: {demand.available_bytes} bytes are free after the "
            f"weights, {budget} of them are for it, and one block takes {demand.bytes_per_block}"
        )
    return num_blocks


def fit_model_len(*, flag: int | None, model_limit: int, num_blocks: int, block_size: int) -> int:
    """Most tokens of a sequence: `--max-model-len`, else the model's limit, if the pool holds it.

    Raises:
        ConfigError: the flag exceeds what the pool holds.
    """
    capacity = num_blocks * block_size
    wanted = model_limit if flag is None else flag
    if wanted <= capacity:
        return wanted
    if flag is not None:
        raise ConfigError(
            f"--max-model-len {flag}: more than the KV cache holds, {num_blocks} blocks of "
            f"{block_size} = {capacity} tokens; raise --kv-cache-memory-bytes or lower the length"
        )
    logger.warning(
        "max model length lowered from %d to %d tokens: the KV cache holds %d blocks of %d; "
        "--kv-cache-memory-bytes makes it larger",
        model_limit,
        capacity,
        num_blocks,
        block_size,
    )
    return capacity


def check_model_len(flag: int | None, model_limit: int) -> int:
    """The flag's value, else the model's limit.

    Raises:
        ConfigError: the flag is out of range.
    """
    if flag is None:
        return model_limit
    if flag < 1:
        raise ConfigError(f"--max-model-len {flag}: must be at least 1")
    if flag > model_limit:
        raise ConfigError(f"--max-model-len {flag}: the model's own limit is {model_limit} tokens")
    return flag


def activation_bytes_per_token(spec: ModelSpec) -> int:
    """Bytes that a token of a step takes while a layer runs, at most; they are given back after it.

    In float32: the residual stream and its norm; the widest that lives beside them, be it q, k and
    v with the attended values or gate and up with their product.
    """
    heads = 2 * spec.num_heads + 2 * spec.num_kv_heads
    widest = max(heads * spec.head_size, 3 * spec.intermediate_size)
    return 4 * (2 * spec.hidden_size + widest)


def resident_bytes() -> int:
    """Memory that this process has in use now: of what it has reserved, what was touched."""
    return int(psutil.Process().memory_info().rss)


def available_bytes(device: torch.device) -> int:
    """Memory that could be taken on `device` now."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free
    return min(psutil.virtual_memory().available, cgroup_headroom(CGROUP_ROOT))


def _cpu_budget(cache: CacheConfig, demand: PoolDemand) -> int:
    """Modest, for a machine that has other work; never more than all sequences could fill."""
    longest_blocks = -(-demand.max_model_len // cache.block_size)
    return min(
        int(demand.available_bytes * CPU_SHARE_OF_FREE_MEMORY),
        demand.max_num_seqs * longest_blocks * demand.bytes_per_block,
        CPU_MOST_BYTES,
    )


def _accelerator_budget(cache: CacheConfig, demand: PoolDemand) -> int:
    share = cache.gpu_memory_utilization
    if not 0.0 < share <= 1.0:
        raise ConfigError(f"--gpu-memory-utilization {share}: must be above 0 and at most 1")
    return int(demand.available_bytes * share)


@dataclass(frozen=True, slots=True)
class CgroupFiles:
    """Where a version of Linux control groups keeps a container's memory figures."""

    limit: str
    usage: str
    statistics: str
    reclaimable: str  # the line of `statistics` that counts idle page cache


CGROUP_VERSIONS = (
    CgroupFiles("memory.max", "memory.current", "memory.stat", "inactive_file"),
    CgroupFiles(
        "memory/memory.limit_in_bytes",
        "memory/memory.usage_in_bytes",
        "memory/memory.stat",
        "total_inactive_file",
    ),
)


def cgroup_headroom(root: Path) -> int:
    """Bytes that the container's limit leaves; a huge number where there is no limit.

    Idle page cache (a checkpoint just read, for one) counts as free: the kernel gives it up.
    """
    headroom = UNLIMITED_BYTES
    for files in CGROUP_VERSIONS:
        try:
            limit = (root / files.limit).read_text().strip()
            usage = int((root / files.usage).read_text())
            statistics = (root / files.statistics).read_text().splitlines()
        except OSError:  # not this version, or no container
            continue
        if limit != "max":
            fields = dict(line.split() for line in statistics)
            usage -= int(fields.get(files.reclaimable, 0))
            headroom = min(headroom, max(int(limit) - usage, 0))
    return headroom
