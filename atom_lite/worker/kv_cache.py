"""Sizes and allocates the paged KV cache of a stage.

Runs once at start, after the weights are loaded, so that the free memory it looks at is what they
left. Which block belongs to whom is the scheduler's business; here blocks are only memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from atom_lite.attention.protocol import LayerKV
from atom_lite.errors import ConfigError
from atom_lite.worker.memory import (
    PoolDemand,
    available_bytes,
    check_model_len,
    fit_model_len,
    num_pool_blocks,
)

if TYPE_CHECKING:
    from atom_lite.attention.protocol import Backend
    from atom_lite.config import Config
    from atom_lite.models.spec import ModelSpec


_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "int8": torch.int8,
    "fp8": torch.float8_e4m3fn,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KVPool:
    """The pool as allocated."""

    layers: list[LayerKV]
    num_blocks: int
    num_bytes: int
    max_model_len: int  # tokens that a sequence may have with this pool


def allocate_pool(
    config: Config,
    spec: ModelSpec,
    backend: Backend,
    dtype: torch.dtype,
    device: torch.device,
    *,
    num_layers: int,
) -> KVPool:
    """Size the pool from the flags and the free memory, and allocate it untouched.

    Args:
        config: cache, model and scheduler settings.
        spec: the model.
        backend: owns the layout.
        dtype: of the weights; `--kv-cache-dtype auto` gives keys and values the same.
        device: where they live.
        num_layers: of this stage.

    Raises:
        ConfigError: the flags ask for what the machine or the model does not have.
    """
    cache = config.cache
    dtype = _DTYPES.get(cache.kv_cache_dtype, dtype)
    bytes_per_block = backend.kv_bytes_per_block(
        num_layers, cache.block_size, spec.num_kv_heads, spec.head_size, dtype
    )
    model_limit = spec.max_position_embeddings
    flag = config.model.max_model_len
    demand = PoolDemand(
        bytes_per_block=bytes_per_block,
        max_num_seqs=config.scheduler.max_num_seqs,
        max_model_len=check_model_len(flag, model_limit),
        available_bytes=available_bytes(device),
        on_cpu=device.type == "cpu",
    )
    num_blocks = num_pool_blocks(cache, demand)
    max_model_len = fit_model_len(
        flag=flag, model_limit=model_limit, num_blocks=num_blocks, block_size=cache.block_size
    )
    shape = (num_blocks, cache.block_size, spec.num_kv_heads, spec.head_size)
    num_bytes = num_blocks * bytes_per_block
    try:
        layers = backend.allocate_kv(num_layers, *shape, dtype, device)
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise ConfigError(
            f"a KV cache of {num_blocks} blocks ({num_bytes} bytes) cannot be allocated on "
            f"{device}: {demand.available_bytes} bytes are free"
        ) from error
    return KVPool(
        layers=layers, num_blocks=num_blocks, num_bytes=num_bytes, max_model_len=max_model_len
    )
