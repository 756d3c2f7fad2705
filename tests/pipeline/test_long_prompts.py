"""Prompts of 16K and 32K tokens over two real stages, with random weights of a tiny model."""

from __future__ import annotations

import dataclasses
import random
from typing import TYPE_CHECKING

import pytest

from atom_lite.config import ChunkingConfig, Config, ModelConfig, ParallelConfig, SchedulerConfig
from atom_lite.engine.in_process import Engine
from atom_lite.messages import SamplingParams
from tests.fakes.tiny_model import write_tiny_model
from tests.pipeline.test_equal_tokens import fitted

if TYPE_CHECKING:
    from pathlib import Path

LENGTHS = (16384, 32768)
NUM_OUTPUTS = 8


def outputs(config: Config) -> list[list[int]]:
    source = random.Random(5)
    sampling = SamplingParams(max_tokens=NUM_OUTPUTS, temperature=0.0, ignore_eos=True)
    with Engine(config, controller_maker=fitted) as engine:
        ids = [
            engine.submit([source.randrange(3, 40_000) for _ in range(length)], sampling)
            for length in LENGTHS
        ]
        collected = [engine.collect(sequence_id) for sequence_id in ids]
        engine.scheduler.check_integrity()
        assert engine.stats.chunking is not None
        by_model = engine.stats.chunking.chunks_by_reason.get("model", 0)
    assert (by_model > len(LENGTHS)) == config.chunking.enable_dynamic_chunking
    return collected


@pytest.mark.full
def test_model_sized_chunks_of_very_long_prompts_give_the_tokens_of_fixed_ones(
    tmp_path: Path,
) -> None:
    longest = max(LENGTHS) + NUM_OUTPUTS
    write_tiny_model(tmp_path, num_hidden_layers=2, max_position_embeddings=longest)
    fixed = Config(
        model=ModelConfig(model=str(tmp_path), load_format="dummy", dtype="float32", threads=1),
        scheduler=SchedulerConfig(max_num_batched_tokens=512),
        parallel=ParallelConfig(pipeline_parallel_size=2),
    )
    chunking = ChunkingConfig(enable_dynamic_chunking=True)
    expected = outputs(fixed)
    assert outputs(dataclasses.replace(fixed, chunking=chunking)) == expected
