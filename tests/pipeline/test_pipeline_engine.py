"""Stages as real processes over gloo: the tokens of one stage, and a clean end of each fault."""

from __future__ import annotations

import dataclasses
import random
import signal
from typing import TYPE_CHECKING

import psutil
import pytest

from atom_lite.config import (
    CacheConfig,
    ChunkingConfig,
    Config,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
)
from atom_lite.engine.in_process import Engine
from atom_lite.errors import ConfigError
from atom_lite.messages import SamplingParams
from tests.unit.models.tiny_models import CONFIGS, make_model, save

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    path: Path = tmp_path_factory.mktemp("tiny")
    save(make_model(CONFIGS["llama-tied-llama3-rope"]), path)
    return Config(
        model=ModelConfig(model=str(path), dtype="float32", threads=1),
        cache=CacheConfig(block_size=4, num_gpu_blocks_override=120),
        scheduler=SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=24),
    )


def with_stages(config: Config, stages: int) -> Config:
    return dataclasses.replace(config, parallel=ParallelConfig(pipeline_parallel_size=stages))


def requests() -> list[tuple[list[int], SamplingParams]]:
    """Prompts of 1 to 90 tokens, some with a common prefix; greedy and sampled."""
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
        made.append((prompt, sampling))
    return made


def outputs(config: Config) -> list[list[int]]:
    with Engine(config) as engine:
        ids = [engine.submit(prompt, sampling) for prompt, sampling in requests()]
        tokens = [engine.collect(sequence_id) for sequence_id in ids]
        engine.scheduler.check_integrity()
        assert engine.scheduler.stats().kv_usage == 0
    return tokens


@pytest.fixture(scope="module")
def expected(config: Config) -> list[list[int]]:
    return outputs(config)


@pytest.mark.parametrize("stages", [2, 3])
def test_stages_give_the_tokens_of_one_stage(
    config: Config, expected: list[list[int]], stages: int
) -> None:
    assert outputs(with_stages(config, stages)) == expected


def test_stages_give_the_same_tokens_under_preemption(
    config: Config, expected: list[list[int]]
) -> None:
    tight = dataclasses.replace(
        with_stages(config, 2), cache=CacheConfig(block_size=4, num_gpu_blocks_override=30)
    )
    assert outputs(tight) == expected


def test_a_killed_stage_ends_every_sequence_with_an_error(config: Config) -> None:
    engine = Engine(with_stages(config, 2))
    ids = [engine.submit([5] * 10, SamplingParams(max_tokens=90, ignore_eos=True)) for _ in "abc"]
    streams = [engine.events(sequence_id) for sequence_id in ids]
    next(streams[0])
    (follower,) = [
        child
        for child in psutil.Process().children()
        if "atom_lite.engine.stage_process" in child.cmdline()
    ]
    follower.send_signal(signal.SIGKILL)
    for stream in streams:
        *_, last = stream
        assert getattr(last, "reason", None) == "error"
    engine.close()
    assert not follower.is_running() or follower.status() == psutil.STATUS_ZOMBIE


def test_a_stage_that_cannot_start_fails_the_start(config: Config) -> None:
    with pytest.raises(ConfigError, match="1,x"):
        Engine(
            dataclasses.replace(
                config,
                parallel=ParallelConfig(pipeline_parallel_size=2, pipeline_layer_partition="1,x"),
            )
        )


@pytest.mark.parametrize("policy", ["makespan", "atom", "sglang", "linear", "fixed"])
def test_every_chunk_policy_gives_the_same_tokens(
    config: Config, expected: list[list[int]], policy: str
) -> None:
    chunking = ChunkingConfig(
        enable_dynamic_chunking=True,
        dynamic_chunking_policy=policy,
        dynamic_chunking_min_chunk_size=8,
    )
    budget = dataclasses.replace(config.scheduler, max_num_batched_tokens=256)
    assert outputs(dataclasses.replace(config, chunking=chunking, scheduler=budget)) == expected
