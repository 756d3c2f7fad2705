"""Stages as real processes over gloo: the tokens of one stage, and a clean end of each fault."""

from __future__ import annotations

import dataclasses
import itertools
import re
import signal
import threading
from typing import TYPE_CHECKING

import psutil
import pytest

from atom_lite.chunking.controller import StaticController
from atom_lite.chunking.planners.fixed import FixedPlanner
from atom_lite.chunking.profile import Fingerprint
from atom_lite.config import (
    CacheConfig,
    ChunkingConfig,
    Config,
    ParallelConfig,
)
from atom_lite.engine.chunking_desk import ChunkingDesk
from atom_lite.engine.head import Head
from atom_lite.engine.in_process import Engine
from atom_lite.engine.limits import scheduler_limits
from atom_lite.engine.start import start_executor
from atom_lite.engine.vocabulary import read_vocabulary
from atom_lite.errors import ConfigError
from atom_lite.ipc.link import QueueLink
from atom_lite.messages import (
    EngineEvents,
    EngineMessage,
    SamplingParams,
    SequenceEvent,
    SequenceFinished,
    Shutdown,
    SubmitSequence,
)
from atom_lite.scheduler.scheduler import Scheduler
from tests.fakes.grammars import text_of
from tests.pipeline.tiny_run import FORMS, SHAPES, outputs, requests, tiny_config

if TYPE_CHECKING:
    from atom_lite.chunking.calibrator import StepSample
    from atom_lite.chunking.refusal import Notice


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    return tiny_config(tmp_path_factory.mktemp("tiny"))


def with_stages(config: Config, stages: int) -> Config:
    return dataclasses.replace(config, parallel=ParallelConfig(pipeline_parallel_size=stages))


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
    assert outputs(tight, least_preemptions=1) == expected


def test_shaped_sequences_keep_to_their_options(expected: list[list[int]]) -> None:
    strays = {True: 0, False: 0}  # by whether there are options to stray from
    # Where there is a grammar it goes before the options.
    for (_, sampling), tokens in zip(requests()[::2], expected[::2], strict=True):
        words = set(itertools.pairwise(tokens)) & set(SHAPES["bad_words"])
        others = set(tokens) - set(SHAPES["allowed_token_ids"])
        strays[bool(sampling.bad_words)] += len(words) + len(others)
    assert strays[True] == 0
    assert strays[False] > 0


def test_a_sequence_alone_gets_the_tokens_that_it_gets_in_a_batch(
    config: Config, expected: list[list[int]]
) -> None:
    assert outputs(config, one_by_one=True) == expected


def test_outputs_keep_to_their_grammars(config: Config, expected: list[list[int]]) -> None:
    vocabulary = read_vocabulary(config)
    texts = [text_of(vocabulary, tokens).decode() for tokens in expected]
    for index, pattern in enumerate((r"\[[-\d,\s]*\]?", r"([a-c]{2} ?)*[a-c]?", "yes|no", r"\{.*")):
        for text in texts[2 * index + 1 :: 2 * len(FORMS)]:
            assert re.fullmatch(pattern, text, re.DOTALL), (pattern, text)
    assert len(set(texts[1::2])) > 4


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


@pytest.mark.parametrize(
    ("stages", "partition", "told"),
    [(2, "1,x", "--pipeline-layer-partition 1,x"), (4, None, "more than the model's 3 layers")],
)
def test_stages_that_the_model_cannot_be_cut_into_are_the_operators_mistake(
    config: Config, stages: int, partition: str | None, told: str
) -> None:
    parallel = ParallelConfig(pipeline_parallel_size=stages, pipeline_layer_partition=partition)
    with pytest.raises(ConfigError, match=f"^(--pipeline-parallel-size 4: )?{told}"):
        Engine(dataclasses.replace(config, parallel=parallel))


def events_of(message: EngineMessage | None) -> list[SequenceEvent]:
    return message.events if isinstance(message, EngineEvents) else []


class SampleKeeper(StaticController):
    """A policy that wants every step's times and keeps them."""

    def __init__(self) -> None:
        super().__init__(FixedPlanner(), "a test")
        self.samples: list[StepSample] = []

    def wants_sample(self, *, num_sequences: int, num_prefills: int) -> bool:
        return True

    def record(self, sample: StepSample) -> list[Notice]:
        self.samples.append(sample)
        return []


def test_the_calibration_gets_the_time_of_each_of_three_stages(config: Config) -> None:
    three = with_stages(config, 3)
    link = QueueLink()
    executor, info = start_executor(three, link.wake, pin=False)
    keeper = SampleKeeper()
    desk = ChunkingDesk(
        keeper,
        Fingerprint(
            model="tiny",
            dtype=info.dtype,
            device=info.device,
            num_threads=1,
            layers_per_stage=info.layers_per_stage,
        ),
        policy="fixed",
        profile_path=None,
        block_size=4,
        vocab_size=info.vocab_size,
    )
    head = Head(Scheduler(scheduler_limits(three, info)), executor, link, desk)
    sampling = SamplingParams(max_tokens=9, ignore_eos=True)
    link.put(
        SubmitSequence(
            sequence_id=0, prompt_token_ids=[*range(3, 80)], sampling=sampling, arrival_time=0.0
        )
    )
    thread = threading.Thread(target=head.run)
    thread.start()
    while not any(isinstance(e, SequenceFinished) for e in events_of(link.outbox.get(timeout=60))):
        pass
    link.put(Shutdown())
    thread.join(30)
    assert len(keeper.samples) == 4 + 8  # chunks of 24 tokens, then decodes
    for sample in keeper.samples:
        assert len(sample.stage_seconds) == 3
        assert min(sample.stage_seconds) > 0.0


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


@pytest.mark.parametrize("policy", ["atom", "makespan"])
def test_aborts_at_any_point_of_a_prompt_leave_the_tokens_of_others(
    config: Config, expected: list[list[int]], policy: str
) -> None:
    """Short companions tell how far the long prompts are; chunks of these are in flight then."""
    long, (prompt, sampling) = [7] * 80, requests()[2]
    chunking = ChunkingConfig(
        enable_dynamic_chunking=True,
        dynamic_chunking_policy=policy,
        dynamic_chunking_min_chunk_size=8,
    )
    with Engine(dataclasses.replace(config, chunking=chunking)) as engine:
        for point in range(10):
            salt = str(point)  # nothing is computed before
            ids = [engine.submit(long, sampling, cache_salt=salt + end) for end in "ab"]
            for _ in range(point):
                engine.complete([5], SamplingParams(max_tokens=1))
            companion = engine.submit(prompt, sampling, cache_salt=salt)
            for sequence_id in ids:
                engine.abort(sequence_id)
            assert engine.collect(companion) == expected[2]
            for sequence_id in ids:
                *_, end = engine.events(sequence_id)
                assert isinstance(end, SequenceFinished)
                assert end.reason == "abort" or (point and end.reason == "length")
        engine.scheduler.check_integrity()
        assert engine.scheduler.stats().kv_usage == 0
