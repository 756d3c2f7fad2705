"""One pass of every arm inside this process: when each stream's tokens came, and what steps held.

Over HTTP nobody sees a step. So the engine runs here, with the arm's own flags, and its chunk-size
policy is wrapped by one that writes every step down. Not for figures: those come from servers.

    8 streams, until each has brought some tokens -> one long prompt -> its first token, and a while
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from atom_lite.cli import parse_config
from atom_lite.engine.chunking_policy import make_controller
from atom_lite.engine.in_process import Engine
from atom_lite.messages import SamplingParams, TokensGenerated
from benchmarks.chunking_pairs import random_prompt
from benchmarks.interference_arms import PIPELINE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from atom_lite.chunking.background import Background
    from atom_lite.chunking.calibrator import StepSample
    from atom_lite.chunking.controller import ChunkingController
    from atom_lite.chunking.refusal import Notice
    from atom_lite.config import Config
    from atom_lite.scheduler.limits import SchedulerLimits

NUM_STREAMS = 8
STREAM_PROMPT_TOKENS = 64
STREAM_OUTPUT_TOKENS = 256
TOKENS_BEFORE = 8  # of each stream, before the long prompt comes
LONG_OUTPUT_TOKENS = 4
WAIT_SECONDS = 300.0


class TimedStep(msgspec.Struct, frozen=True, array_like=True):
    """One step: when its result came, how long it took, what it held. Seconds since the start."""

    ended: float
    seconds: float
    decode_rows: int
    prefill_tokens: int


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """One arm's pass.

    Attributes:
        arm: its name.
        long_came: when the long prompt was submitted, in seconds since the start.
        long_began: when its first token came.
        streams: when each stream's tokens came.
        steps: all of them, in order.
    """

    arm: str
    long_came: float
    long_began: float | None
    streams: list[list[float]]
    steps: list[TimedStep]


class StepRecorder:
    """The policy's own controller, with every step written down on the way."""

    def __init__(self, inner: ChunkingController) -> None:
        self._inner = inner
        self.steps: list[tuple[float, StepSample]] = []
        self._wanted: list[bool] = []  # of the steps under way, in order

    def __getattr__(self, name: str) -> object:
        """All else is the policy's."""
        return getattr(self._inner, name)

    def wants_sample(self, *, num_sequences: int, num_prefills: int) -> bool:
        """Every step, for the record."""
        self._wanted.append(
            self._inner.wants_sample(num_sequences=num_sequences, num_prefills=num_prefills)
        )
        return True

    def record(self, sample: StepSample) -> list[Notice]:
        """Write it down; the policy learns from what it wanted."""
        self.steps.append((time.monotonic(), sample))
        return self._inner.record(sample) if self._wanted.pop(0) else []


@dataclass(slots=True)
class _Listener:
    """One sequence's token times, read on a thread of its own."""

    engine: Engine
    prompt: list[int]
    output_tokens: int
    wanted: int  # tokens after which it is `ready`
    times: list[float] = field(default_factory=list)
    ready: threading.Event = field(default_factory=threading.Event)
    sequence_id: int = -1

    def start(self) -> threading.Thread:
        sampling = SamplingParams(max_tokens=self.output_tokens, temperature=0.0, ignore_eos=True)
        self.sequence_id = self.engine.submit(self.prompt, sampling)
        thread = threading.Thread(target=self._listen, daemon=True)
        thread.start()
        return thread

    def _listen(self) -> None:
        for event in self.engine.events(self.sequence_id):
            if isinstance(event, TokensGenerated):
                self.times += [time.monotonic()] * len(event.token_ids)
                if len(self.times) >= self.wanted:
                    self.ready.set()
        self.ready.set()


def record_timelines(
    flags: Mapping[str, tuple[str, ...]], model: tuple[str, ...], long_tokens: int
) -> Iterator[Timeline]:
    """One arm after the other; those over several stages have no place in this process.

    Args:
        flags: arm -> what its server is started with.
        model: flags that name the model.
        long_tokens: of the long prompt.
    """
    for arm, own in flags.items():
        if not arm.startswith(PIPELINE):
            print(f"{arm}: timeline", file=sys.stderr, flush=True)
            yield record_timeline(arm, parse_config([*model, *own]), long_tokens)


def record_timeline(arm: str, config: Config, long_tokens: int) -> Timeline:
    """One pass; see the module."""
    recorders: list[StepRecorder] = []

    def recorded(
        config: Config, limits: SchedulerLimits, background: Background
    ) -> ChunkingController:
        recorders.append(StepRecorder(make_controller(config, limits, background)))
        return recorders[0]  # type: ignore[return-value]  # the rest is __getattr__'s

    with Engine(config, controller_maker=recorded) as engine:
        vocabulary = engine.ready.vocab_size
        streams = [
            _Listener(
                engine,
                random_prompt(f"timeline/{index}", STREAM_PROMPT_TOKENS, vocabulary),
                STREAM_OUTPUT_TOKENS,
                TOKENS_BEFORE,
            )
            for index in range(NUM_STREAMS)
        ]
        began = time.monotonic()
        threads = [stream.start() for stream in streams]
        for stream in streams:
            stream.ready.wait(WAIT_SECONDS)
        prompt = random_prompt("timeline/long", long_tokens, vocabulary)
        long_one = _Listener(engine, prompt, LONG_OUTPUT_TOKENS, LONG_OUTPUT_TOKENS)
        long_came = time.monotonic()
        threads.append(long_one.start())
        long_one.ready.wait(WAIT_SECONDS)
        for listener in (*streams, long_one):
            engine.abort(listener.sequence_id)
        for thread in threads:
            thread.join(WAIT_SECONDS)
    return Timeline(
        arm=arm,
        long_came=long_came - began,
        long_began=long_one.times[0] - began if long_one.times else None,
        streams=[[round(at - began, 4) for at in stream.times] for stream in streams],
        steps=[timed(ended - began, sample) for ended, sample in recorders[0].steps],
    )


def timed(ended: float, sample: StepSample) -> TimedStep:
    """A step's record, `ended` in seconds since the start."""
    return TimedStep(
        ended=round(ended, 4),
        seconds=round(max(sample.stage_seconds, default=0.0), 5),
        decode_rows=sample.decode_rows,
        prefill_tokens=sample.new_tokens,
    )


def gaps(times: list[float]) -> list[tuple[float, float]]:
    """(when it ended, how long it was) of each gap of a stream."""
    return [(later, later - earlier) for earlier, later in itertools.pairwise(times)]
