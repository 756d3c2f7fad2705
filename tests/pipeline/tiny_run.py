"""A tiny random model of three layers, one for each of up to three stages, and work for it."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import msgspec

from atom_lite.config import CacheConfig, Config, ModelConfig, SchedulerConfig
from atom_lite.engine.in_process import Engine
from atom_lite.messages import SamplingParams
from tests.unit.models.tiny_models import CONFIGS, make_model, save

if TYPE_CHECKING:
    from pathlib import Path

SHAPES: dict[str, Any] = {
    "presence_penalty": 1.0,
    "frequency_penalty": 0.5,
    "repetition_penalty": 1.5,
    "logit_bias": {5: 2.0, 70: -4.0},
    "allowed_token_ids": tuple(range(80)),
    "bad_words": tuple((before, last) for before in range(80) for last in range(10, 20)),
    "min_tokens": 6,
}


def tiny_config(path: Path) -> Config:
    """Its config, with the checkpoint saved at `path`."""
    save(make_model(CONFIGS["llama-tied-llama3-rope"]), path)
    return Config(
        model=ModelConfig(model=str(path), dtype="float32", threads=1),
        cache=CacheConfig(block_size=4, num_gpu_blocks_override=120),
        scheduler=SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=24),
    )


def requests() -> list[tuple[list[int], SamplingParams]]:
    """Prompts of 1 to 90 tokens, some with a common prefix; greedy, sampled and shaped."""
    source = random.Random(3)
    common = [source.randrange(3, 90) for _ in range(40)]
    made = []
    for index in range(16):
        length = source.randrange(1, 90)
        prompt = [source.randrange(3, 90) for _ in range(length)]
        if index % 3 == 0:
            prompt = common + prompt[:20]
        sampling = SamplingParams(
            max_tokens=12, temperature=float(index % 2), seed=index, ignore_eos=True
        )
        if index % 4 > 1:
            sampling = msgspec.structs.replace(sampling, **SHAPES)
        made.append((prompt, sampling))
    return made


def outputs(config: Config) -> list[list[int]]:
    with Engine(config) as engine:
        ids = [engine.submit(prompt, sampling) for prompt, sampling in requests()]
        tokens = [engine.collect(sequence_id) for sequence_id in ids]
        engine.scheduler.check_integrity()
        assert engine.scheduler.stats().kv_usage == 0
    return tokens
