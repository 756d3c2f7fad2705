"""A tiny random model of three layers, one for each of up to three stages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atom_lite.config import CacheConfig, Config, ModelConfig, SchedulerConfig
from tests.unit.models.tiny_models import CONFIGS, make_model, save

if TYPE_CHECKING:
    from pathlib import Path


def tiny_config(path: Path) -> Config:
    """Its config, with the checkpoint saved at `path`."""
    save(make_model(CONFIGS["llama-tied-llama3-rope"]), path)
    return Config(
        model=ModelConfig(model=str(path), dtype="float32", threads=1),
        cache=CacheConfig(block_size=4, num_gpu_blocks_override=120),
        scheduler=SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=24),
    )
