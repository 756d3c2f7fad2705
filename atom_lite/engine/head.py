"""The head's loop: messages in, plans to the model, results out. Owns scheduler and clock.

One turn of the loop, in the order that keeps the model busy:

    receive -> commit what finished -> schedule and start the next step -> send what was committed

The results of step k are encoded and sent while step k+1 already runs. The loop sleeps only in
`link.receive`, which a finished step, a message or the heartbeat ends. It runs in the engine
process, or in a thread of an in-process Engine; both use exactly this code.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

import msgspec

from atom_lite.engine.chunking_desk import log_notices
from atom_lite.engine.occupancy import PipelineOccupancy
from atom_lite.messages import (
    AbortSequence,
    EngineEvents,
    EngineFailed,
    FrontendMessage,
    ResetPrefixCache,
    SequenceEvent,
    Shutdown,
    SubmitSequence,
)

if TYPE_CHECKING:
    from atom_lite.engine.chunking_desk import ChunkingDesk
    from atom_lite.engine.executor import Executor
    from atom_lite.ipc.link import EngineLink
    from atom_lite.scheduler.scheduler import Scheduler

HEARTBEAT_SECONDS = 1.0

logger = logging.getLogger(__name__)


class Head:
    """Drives one scheduler and one executor until a Shutdown comes or a step fails.

    Args:
        scheduler: nobody else calls it while the head runs.
        executor: runs the plans; closed at the end.
        link: to the frontend.
        chunking: learns from the steps' times; None where nothing is to be learned.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        link: EngineLink,
        chunking: ChunkingDesk | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._chunking = chunking
        self._executor = executor
        self._link = link
        self._occupancy = PipelineOccupancy()
        self._step_tokens: list[int] = []
        self._stopping = False

    def run(self) -> bool:
        """Serve until stopped.

        Returns:
            True after a Shutdown; False when a step failed. Either way every sequence has had its
            terminal message, and the link is still open.
        """
        try:
            while not self._stopping:
                self._turn()
            self._send(self._scheduler.abort_all(time.monotonic()))
            return True
        except Exception as error:
            logger.exception("the engine failed")
            self._fail(f"{type(error).__name__}: {error}")
            return False
        finally:
            self._executor.close()
            if self._chunking is not None:
                self._chunking.close()

    def _turn(self) -> None:
        messages = self._link.receive(HEARTBEAT_SECONDS)
        events: list[SequenceEvent] = []
        for message in messages:
            events += self._handle(message)
        events += self._commit_finished()
        if self._chunking is not None:
            self._chunking.deliver()
        if not self._stopping:
            self._start_next()
        log_notices(self._scheduler.take_notices())
        self._send(events)
        if self._chunking is not None:
            self._chunking.report(time.monotonic())

    def _handle(self, message: FrontendMessage) -> list[SequenceEvent]:
        now = time.monotonic()
        match message:
            case SubmitSequence():
                events = self._scheduler.submit(message, now)
                if self._chunking is not None and not events:
                    cached = self._scheduler.cached_tokens(message.sequence_id)
                    self._chunking.submitted(message, cached)
                return events
            case AbortSequence():
                return self._scheduler.abort(message.sequence_id, message.reason, now)
            case ResetPrefixCache():
                self._scheduler.reset_prefix_cache()
            case Shutdown():
                self._stopping = True
        return []

    def _commit_finished(self) -> list[SequenceEvent]:
        events: list[SequenceEvent] = []
        for result in self._executor.take_results():
            now = time.monotonic()
            for times in result.times:
                self._occupancy.add(times)
            self._occupancy.finish(result.step_id, now)
            events += self._scheduler.commit(result, now)
            if self._chunking is not None:
                self._chunking.finished(result)
        return events

    def _start_next(self) -> None:
        """Plan until the pipeline is full or nothing can run."""
        self._scheduler.hand_on(self._executor.last_handed_on())
        while (plan := self._scheduler.schedule(time.monotonic())) is not None:
            self._step_tokens.append(sum(row.num_tokens for row in plan.rows))
            self._occupancy.start(plan.step_id, time.monotonic())
            self._executor.start(plan)
            if self._chunking is not None:
                self._chunking.planned(plan)

    def _send(self, events: list[SequenceEvent]) -> None:
        """One frame for all that a turn brought; an empty one is the heartbeat."""
        stats = msgspec.structs.replace(
            self._scheduler.stats(),
            stage_busy_seconds=self._occupancy.busy_seconds,
            stage_bubble_seconds=self._occupancy.bubble_seconds,
        )
        if self._chunking is not None:
            chunking = self._chunking.stats(time.monotonic())
            stats = msgspec.structs.replace(stats, chunking=chunking)
        self._link.send(EngineEvents(events=events, stats=stats, step_tokens=self._step_tokens))
        self._step_tokens = []

    def _fail(self, message: str) -> None:
        """Give every sequence its terminal message, then say why the engine dies."""
        events = self._scheduler.abort_all(time.monotonic(), error=f"the engine failed: {message}")
        self._send(events)
        self._link.send(EngineFailed(message=message))
