"""How long the model call of a step took: the number that the latency model learns from.

One protocol, two clocks. A CPU model call returns when it is done, so `perf_counter` around it is
the truth. A GPU's returns when its kernels are queued, so events are recorded on the stream and
read when they have passed.

Runs on every stage, around the layers only: neither building inputs nor sampling is timed.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

# Far below a step's duration, far above the cost of asking.
POLL_INTERVAL_SECONDS = 20e-6


class ForwardTimer(Protocol):
    """Times one model call at a time: start, stop, then seconds."""

    def start(self) -> None:
        """Call right before the model."""
        ...

    def stop(self) -> None:
        """Call right after the model call has returned."""
        ...

    def seconds(self) -> float:
        """Duration of the last model call; may wait for a device to finish it."""
        ...


class WallTimer:
    """For devices whose model call returns when it is done: the CPU."""

    def __init__(self) -> None:
        self._started = 0.0
        self._seconds = 0.0

    def start(self) -> None:
        """See ForwardTimer."""
        self._started = time.perf_counter()

    def stop(self) -> None:
        """See ForwardTimer."""
        self._seconds = time.perf_counter() - self._started

    def seconds(self) -> float:
        """See ForwardTimer."""
        return self._seconds


class TimedEvent(Protocol):
    """A mark in a device's queue of work; all that is needed of `torch.Event`."""

    def record(self) -> None:
        """Put the mark after what has been queued so far."""
        ...

    def query(self) -> bool:
        """Whether the device has passed it."""
        ...

    def elapsed_time(self, end: Any, /) -> float:
        """Milliseconds from this mark to a later one; only once both have been passed."""
        ...


class EventTimer:
    """For an accelerator: events on its current stream.

    The events are polled with short pauses, never synchronised on: a synchronising thread may spin
    on a core that other threads of the engine need.

    Args:
        make_event: makes an event that can be timed.
    """

    def __init__(self, make_event: Callable[[], TimedEvent]) -> None:
        self._begin = make_event()
        self._end = make_event()

    def start(self) -> None:
        """See ForwardTimer."""
        self._begin.record()

    def stop(self) -> None:
        """See ForwardTimer."""
        self._end.record()

    def seconds(self) -> float:
        """See ForwardTimer."""
        while not self._end.query():
            time.sleep(POLL_INTERVAL_SECONDS)
        return self._begin.elapsed_time(self._end) / 1000.0


def timer_for(device: torch.device) -> ForwardTimer:
    """The timer that tells the truth on `device`."""
    if device.type == "cpu":
        return WallTimer()
    return EventTimer(lambda: torch.Event(device, enable_timing=True))
