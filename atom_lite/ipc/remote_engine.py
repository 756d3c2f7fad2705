"""The frontend's end of the link: asyncio streams of events, one per sequence.

One task reads frames (one frame holds all that a step brought) and deals the events out to the
queue of each sequence. Runs in the frontend process only; never blocks its event loop.

Invariant: each stream ends with its SequenceFinished or raises EngineError; `fail` ends all of
them when the engine is gone. That holds also when it is this end that breaks: a reader that stops
reading would leave every client waiting for ever, so its failure is the engine's.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import zmq
import zmq.asyncio

from atom_lite.errors import ConfigError, EngineError
from atom_lite.ipc.codec import decode_engine_message, encode
from atom_lite.messages import (
    AbortSequence,
    EngineEvents,
    EngineFailed,
    EngineMessage,
    EngineReady,
    EngineStats,
    FrontendMessage,
    ResetPrefixCache,
    SequenceEvent,
    SequenceFinished,
    Shutdown,
    SubmitSequence,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

# The head sends a frame at least every second, also while a long step runs.
SILENCE_LIMIT_SECONDS = 15.0
_LOOKS = 15  # at an engine that may hang, in so long

logger = logging.getLogger(__name__)


class RemoteEngine:
    """An engine in another process, as the HTTP layer sees it.

    Create it inside a running event loop. `requests_address` and `events_address` are what the
    engine process connects to.

    Args:
        silence_limit_seconds: an engine that has sent nothing for so long counts as hung.

    Raises:
        ConfigError: there is no place for the sockets.
    """

    def __init__(self, silence_limit_seconds: float = SILENCE_LIMIT_SECONDS) -> None:
        self._silence_limit_seconds = silence_limit_seconds
        try:
            self._directory = tempfile.TemporaryDirectory(prefix="atom_lite-")
        except OSError as error:
            raise ConfigError(f"no directory for the engine's sockets: {error}") from error
        self._context = zmq.asyncio.Context()
        # Sending is synchronous: a pipe without a limit takes a message at once.
        self._requests = zmq.Context(self._context).socket(zmq.PUSH)
        self._events = self._context.socket(zmq.PULL)
        try:
            self.requests_address = self._bind(self._requests, "requests")
            self.events_address = self._bind(self._events, "events")
        except ConfigError:
            self._release()
            raise
        self._ready: asyncio.Future[EngineReady] = asyncio.get_running_loop().create_future()
        self._failure: str | None = None
        self._failed = asyncio.Event()
        self._last_frame_time = time.monotonic()
        self._queues: dict[int, asyncio.Queue[SequenceEvent | EngineError]] = {}
        self._ids = itertools.count(1)
        self._stats = EngineStats()
        self.on_frame: Callable[[EngineEvents], None] | None = None
        self._reader = asyncio.create_task(self._run_reader())

    def _bind(self, socket: zmq.Socket[Any], name: str) -> str:
        address = f"ipc://{Path(self._directory.name) / name}"
        socket.set_hwm(0)  # no limit: admission is decided by the HTTP layer, not by a full pipe
        socket.linger = 0
        try:
            socket.bind(address)
        except zmq.ZMQError as error:
            raise ConfigError(
                f"cannot make a socket at {address}: {error.strerror}; set TMPDIR to a short path"
            ) from error
        return address

    async def wait_ready(self) -> EngineReady:
        """The engine's first message.

        Raises:
            ConfigError: the engine refused the config or the checkpoint.
            EngineError: the engine died while it started.
        """
        return await asyncio.shield(self._ready)

    @property
    def ready(self) -> EngineReady:
        """What the engine said at start; only after `wait_ready`."""
        return self._ready.result()

    @property
    def alive(self) -> bool:
        """False from the moment that the engine is known to have failed."""
        return self._failure is None

    @property
    def responding(self) -> bool:
        """False while an engine that serves has been silent for too long: it hangs, or is stopped.

        Nothing is ended for that; it may come back.
        """
        silence = time.monotonic() - self._last_frame_time
        return not self._ready.done() or silence < self._silence_limit_seconds

    async def wait_failed(self) -> None:
        """Wait until the engine is known to have failed."""
        await self._failed.wait()

    async def wait_hung(self) -> None:
        """Wait until an engine that serves has been silent for too long.

        Counted in looks that found nothing new, not by the clock: while this process was stopped
        too (a paused container), nobody was silent.
        """
        seen, silent_looks = self._last_frame_time, 0
        while silent_looks < _LOOKS:
            await asyncio.sleep(self._silence_limit_seconds / _LOOKS)
            silent_looks = silent_looks + 1 if self._last_frame_time == seen else 0
            seen = self._last_frame_time

    @property
    def stats(self) -> EngineStats:
        """The latest snapshot, at most about a second old."""
        return self._stats

    def next_sequence_id(self) -> int:
        """An id that no sequence of this run has had."""
        return next(self._ids)

    async def stream(self, message: SubmitSequence) -> AsyncIterator[SequenceEvent]:
        """Submit a sequence and yield its events up to and with its SequenceFinished.

        A stream that is closed early aborts its sequence.

        Raises:
            EngineError: the engine is dead, or dies meanwhile.
        """
        if self._failure is not None:
            raise EngineError(self._failure)
        sequence_id = message.sequence_id
        inbox: asyncio.Queue[SequenceEvent | EngineError] = asyncio.Queue()
        self._queues[sequence_id] = inbox
        finished = False
        try:
            if not self._send(message):
                raise EngineError("the engine is gone")
            while not finished:
                event = await inbox.get()
                if isinstance(event, EngineError):
                    finished = True
                    raise event
                finished = isinstance(event, SequenceFinished)
                yield event
        finally:
            del self._queues[sequence_id]
            if not finished:
                self.abort(sequence_id)

    def abort(self, sequence_id: int, reason: Literal["stop", "abort"] = "abort") -> None:
        """End a sequence at the next step boundary; unknown and finished ids are ignored."""
        if self.alive:
            self._send(AbortSequence(sequence_id=sequence_id, reason=reason))

    def reset_prefix_cache(self) -> None:
        """Forget cached blocks that no running sequence holds."""
        if self.alive:
            self._send(ResetPrefixCache())

    def shut_down(self) -> None:
        """Ask the engine to abort what runs and to exit.

        One that is still loading has not connected yet; the end of its lifeline stops it.
        """
        if self.alive and self._ready.done():
            self._send(Shutdown())

    def fail(self, reason: str) -> None:
        """The engine is gone: every open stream raises EngineError now, later ones at once."""
        if self._failure is not None:
            return
        self._failure = reason
        if not self._ready.done():
            self._ready.set_exception(EngineError(reason))
            self._ready.exception()  # seen: nobody may be waiting for it
        self._failed.set()
        for inbox in self._queues.values():
            inbox.put_nowait(EngineError(reason))

    async def close(self) -> None:
        """End what is still open, stop reading, and release sockets and their directory."""
        self.fail("the server has shut down")
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)
        self._release()

    def _release(self) -> None:
        self._requests.close(linger=0)
        self._events.close(linger=0)
        self._context.term()
        self._directory.cleanup()

    def _send(self, message: FrontendMessage) -> bool:
        """Whether there was an engine to send to: one may be gone before `fail` is called."""
        try:
            self._requests.send(encode(message), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    async def _run_reader(self) -> None:
        try:
            while True:
                self._take(decode_engine_message(await self._events.recv()))
        except Exception as error:
            logger.exception("the link to the engine broke")
            self.fail(f"the link to the engine broke: {type(error).__name__}")

    def _take(self, message: EngineMessage) -> None:
        self._last_frame_time = time.monotonic()
        match message:
            case EngineEvents():
                self._deal(message)
            case EngineReady():
                if not self._ready.done():
                    self._ready.set_result(message)
            case EngineFailed():
                self._refuse(message)

    def _deal(self, frame: EngineEvents) -> None:
        self._stats = frame.stats
        for event in frame.events:
            inbox = self._queues.get(event.sequence_id)
            if inbox is not None:
                inbox.put_nowait(event)
        if self.on_frame is not None:
            self.on_frame(frame)

    def _refuse(self, message: EngineFailed) -> None:
        if message.config and not self._ready.done():
            self._ready.set_exception(ConfigError(message.message))
        self.fail(message.message)
