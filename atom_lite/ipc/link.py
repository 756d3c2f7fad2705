"""The engine's end of the frontend-engine link: one protocol, over sockets or in memory.

The head's loop blocks in `receive` and nowhere else. Three things end that wait: a message from the
frontend, `wake()` from the thread that runs the forward pass, or the timeout (the heartbeat).
"""

from __future__ import annotations

import contextlib
import os
import queue
from typing import Protocol

import zmq

from atom_lite.ipc.codec import decode_frontend_message, encode
from atom_lite.messages import EngineMessage, FrontendMessage, Shutdown


class EngineLink(Protocol):
    """What the head needs of its connection to the frontend."""

    def receive(self, timeout_seconds: float) -> list[FrontendMessage]:
        """All messages that are here; waits for the first, a wake-up or the timeout.

        A frontend that is gone counts as a Shutdown. Only the head's thread calls this.
        """
        ...

    def send(self, message: EngineMessage) -> None:
        """Hand a message to the frontend; never blocks. Only the head's thread calls this."""
        ...

    def wake(self) -> None:
        """End a `receive` that waits; safe from any thread."""
        ...

    def close(self) -> None:
        """Flush what was sent and release the connection."""
        ...


class SocketLink:
    """The link between processes: two ZeroMQ pipes bound by the frontend.

    The engine also holds the read end of a pipe whose write end lives in the frontend: when the
    frontend dies, however abruptly, the pipe ends and the engine stops. No orphan is left.

    Args:
        requests_address: endpoint to pull FrontendMessages from.
        events_address: endpoint to push EngineMessages to.
        lifeline: file descriptor that reads end-of-file when the frontend is gone.
    """

    def __init__(self, requests_address: str, events_address: str, lifeline: int) -> None:
        self._context = zmq.Context()
        self._requests = self._context.socket(zmq.PULL)
        self._events = self._context.socket(zmq.PUSH)
        for socket, address in (
            (self._requests, requests_address),
            (self._events, events_address),
        ):
            socket.set_hwm(0)  # no limit: a stalled frontend must never block a step
            socket.connect(address)
        self._events.linger = 2000  # milliseconds: the last answers still go out
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._lifeline = lifeline
        self._poller = zmq.Poller()
        self._poller.register(self._requests, zmq.POLLIN)
        self._poller.register(self._wake_read, zmq.POLLIN)
        self._poller.register(lifeline, zmq.POLLIN)

    def receive(self, timeout_seconds: float) -> list[FrontendMessage]:
        """See EngineLink."""
        ready = dict(self._poller.poll(round(timeout_seconds * 1000)))
        messages: list[FrontendMessage] = []
        if self._wake_read in ready:
            os.read(self._wake_read, 4096)
        if self._requests in ready:
            messages = self._drain()
        if self._lifeline in ready and not os.read(self._lifeline, 4096):
            messages.append(Shutdown())
        return messages

    def _drain(self) -> list[FrontendMessage]:
        messages: list[FrontendMessage] = []
        while True:
            try:
                messages.append(decode_frontend_message(self._requests.recv(zmq.NOBLOCK)))
            except zmq.Again:
                return messages

    def send(self, message: EngineMessage) -> None:
        """See EngineLink."""
        self._events.send(encode(message), copy=False)

    def wake(self) -> None:
        """See EngineLink."""
        with contextlib.suppress(BlockingIOError):  # full of wake-ups: the head will wake
            os.write(self._wake_write, b"w")

    def close(self) -> None:
        """See EngineLink."""
        self._context.destroy(linger=2000)
        os.close(self._wake_read)
        os.close(self._wake_write)


class QueueLink:
    """The link inside one process, for `atom_lite.engine.Engine`; same contract as SocketLink."""

    def __init__(self) -> None:
        self._inbox: queue.SimpleQueue[FrontendMessage | None] = queue.SimpleQueue()
        self.outbox: queue.SimpleQueue[EngineMessage | None] = queue.SimpleQueue()

    def put(self, message: FrontendMessage) -> None:
        """The frontend's side of `receive`; safe from any thread."""
        self._inbox.put(message)

    def receive(self, timeout_seconds: float) -> list[FrontendMessage]:
        """See EngineLink."""
        messages: list[FrontendMessage] = []
        timeout: float | None = timeout_seconds
        while True:
            try:
                item = self._inbox.get(block=timeout is not None, timeout=timeout)
            except queue.Empty:
                return messages
            timeout = None  # only the first is waited for
            if item is not None:
                messages.append(item)

    def send(self, message: EngineMessage) -> None:
        """See EngineLink."""
        self.outbox.put(message)

    def wake(self) -> None:
        """See EngineLink."""
        self._inbox.put(None)

    def close(self) -> None:
        """See EngineLink; the None tells the reader of `outbox` that nothing follows."""
        self.outbox.put(None)
