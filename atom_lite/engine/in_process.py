"""`Engine`: the whole engine inside this process, token ids in and token ids out.

For tests, benchmarks and scripts. It runs the same head, scheduler and runner as the server, on a
thread instead of in a process; only the link differs.

    with Engine(Config(model=ModelConfig(model="path"))) as engine:
        for event in engine.generate([1, 2, 3], SamplingParams(max_tokens=8, temperature=0)):
            ...
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from typing import TYPE_CHECKING, Self

from atom_lite.config_scheduling import NO_OBJECTIVES, Objectives
from atom_lite.engine.assembly import assemble
from atom_lite.engine.chunking_policy import make_controller
from atom_lite.engine.executor import LocalExecutor
from atom_lite.engine.forward_thread import ForwardThread
from atom_lite.engine.head import Head
from atom_lite.errors import EngineError
from atom_lite.ipc.link import QueueLink
from atom_lite.messages import (
    AbortSequence,
    EngineEvents,
    EngineFailed,
    EngineReady,
    EngineStats,
    Grammar,
    ResetPrefixCache,
    SamplingParams,
    SequenceEvent,
    SequenceFinished,
    Shutdown,
    SubmitSequence,
    TokensGenerated,
)
from atom_lite.scheduler.scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from atom_lite.config import Config
    from atom_lite.engine.assembly import MakeController
    from atom_lite.engine.executor import PlanRunner
    from atom_lite.scheduler.scheduler import SchedulerLimits


class Engine:
    """Submit sequences, iterate over their events, abort them. All methods are thread-safe.

    The model is loaded and run on a thread of its own. A program that runs torch operations on
    other threads at the same time slows it down (see `forward_thread`).

    Args:
        config: the whole tree.
        pin: keep this process and the stages that it starts each on its share of the cores.
        controller_maker: makes the chunk-size policy. Default: the one that the config names.

    Raises:
        ConfigError: the config or the checkpoint cannot be used.
    """

    def __init__(
        self,
        config: Config,
        *,
        pin: bool = False,
        controller_maker: MakeController = make_controller,
    ) -> None:
        link = QueueLink()
        assembly = assemble(config, link, pin=pin, controller_maker=controller_maker)
        self.ready: EngineReady = assembly.ready
        self._start(assembly.scheduler, assembly.head, link)

    @classmethod
    def from_parts(cls, limits: SchedulerLimits, runner: PlanRunner, ready: EngineReady) -> Engine:
        """An engine over a runner that is already there, e.g. to reuse loaded weights."""
        engine = cls.__new__(cls)
        engine.ready = ready
        link = QueueLink()
        scheduler = Scheduler(limits)
        executor = LocalExecutor(runner, ForwardThread(), link.wake)
        engine._start(scheduler, Head(scheduler, executor, link), link)
        return engine

    def _start(self, scheduler: Scheduler, head: Head, link: QueueLink) -> None:
        self.scheduler = scheduler
        self.stats = EngineStats()
        self._link = link
        self._ids = itertools.count()
        self._queues: dict[int, queue.SimpleQueue[SequenceEvent | EngineError]] = {}
        self._lock = threading.Lock()
        self._failure: str | None = None
        self._head_thread = threading.Thread(
            target=self._run_head, args=(head,), name="head", daemon=True
        )
        self._reader = threading.Thread(target=self._dispatch, name="engine-events", daemon=True)
        self._head_thread.start()
        self._reader.start()

    def submit(
        self,
        prompt_token_ids: list[int],
        sampling: SamplingParams,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        group: int | None = None,
        script: list[int] | None = None,
        grammar: Grammar | None = None,
        objectives: Objectives = NO_OBJECTIVES,
    ) -> int:
        """Queue a sequence and return its id; its events are kept until `events(id)` reads them.

        Sequences with the same prompt and `group` compute that prompt once, with or without a
        prefix cache. `objectives` are its own, before the config's.
        """
        sequence_id = next(self._ids)
        message = SubmitSequence(
            sequence_id=sequence_id,
            prompt_token_ids=prompt_token_ids,
            sampling=sampling,
            arrival_time=time.monotonic(),
            priority=priority,
            cache_salt=cache_salt,
            group=group,
            script=script,
            grammar=grammar,
            ttft_slo_seconds=objectives.ttft_seconds,
            tbt_slo_seconds=objectives.tbt_seconds,
        )
        with self._lock:
            if self._failure is not None:
                raise EngineError(self._failure)
            self._queues[sequence_id] = queue.SimpleQueue()
        self._link.put(message)
        return sequence_id

    def events(self, sequence_id: int) -> Iterator[SequenceEvent]:
        """Events of one sequence up to and with its SequenceFinished; read once.

        Leaving the iteration early aborts the sequence: nobody could read the rest.

        Raises:
            EngineError: the engine failed or was closed before the sequence ended.
        """
        with self._lock:
            inbox = self._queues[sequence_id]
        ended = False
        try:
            while not ended:
                event = inbox.get()
                if isinstance(event, EngineError):
                    raise event
                ended = isinstance(event, SequenceFinished)
                yield event
        finally:
            with self._lock:
                self._queues.pop(sequence_id, None)
            if not ended:
                self.abort(sequence_id)

    def generate(
        self, prompt_token_ids: list[int], sampling: SamplingParams
    ) -> Iterator[SequenceEvent]:
        """Submit and iterate in one call."""
        yield from self.events(self.submit(prompt_token_ids, sampling))

    def complete(self, prompt_token_ids: list[int], sampling: SamplingParams) -> list[int]:
        """The output token ids of one sequence, once it ended."""
        return self.collect(self.submit(prompt_token_ids, sampling))

    def collect(self, sequence_id: int) -> list[int]:
        """The output token ids of a submitted sequence, once it ended."""
        token_ids: list[int] = []
        for event in self.events(sequence_id):
            if isinstance(event, TokensGenerated):
                token_ids += event.token_ids
            elif isinstance(event, SequenceFinished) and event.reason == "error":
                raise EngineError(event.error or "the sequence failed")
        return token_ids

    def abort(self, sequence_id: int) -> None:
        """End a sequence at the next step boundary; its events end with reason "abort"."""
        self._link.put(AbortSequence(sequence_id=sequence_id))

    def reset_prefix_cache(self) -> None:
        """Forget cached blocks that no running sequence holds."""
        self._link.put(ResetPrefixCache())

    def close(self) -> None:
        """Abort what runs and end the threads; a second call does nothing."""
        self._link.put(Shutdown())
        self._head_thread.join()
        self._reader.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _run_head(self, head: Head) -> None:
        try:
            head.run()
        finally:
            self._link.close()

    def _dispatch(self) -> None:
        """Reader thread: frames of the head -> the queue of each sequence."""
        while (message := self._link.outbox.get()) is not None:
            if isinstance(message, EngineEvents):
                self.stats = message.stats
                for event in message.events:
                    self._deliver(event.sequence_id, event)
            elif isinstance(message, EngineFailed):
                self._fail_all(message.message)
        self._fail_all("the engine is closed")

    def _deliver(self, sequence_id: int, event: SequenceEvent | EngineError) -> None:
        with self._lock:
            inbox = self._queues.get(sequence_id)
        if inbox is not None:
            inbox.put(event)

    def _fail_all(self, reason: str) -> None:
        with self._lock:
            self._failure = self._failure or reason
            waiting = list(self._queues)
        for sequence_id in waiting:
            self._deliver(sequence_id, EngineError(reason))
