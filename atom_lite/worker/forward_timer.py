"""How long the model call of a step took: the number that the latency model learns from.

One protocol, two clocks. A CPU model call returns when it is done, so `perf_counter` around it is
the truth, known at once. A GPU's returns when its kernels are queued, so events are recorded on the
stream and asked after each later step whether they have passed: nothing ever waits for a time, and
a time comes home with the first result after it is known.

Runs on every stage, around the layers, and on the last one around LM head and sampling too, apart:
a stage is busy for both, but only rows that draw cost the second. Building inputs is not timed. The
events are used as PyTorch documents them (`query` never waits, `elapsed_time` is for events that
have both passed); on a GPU this has not been run.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

import torch

from atom_lite.messages import StepTimes

if TYPE_CHECKING:
    from collections.abc import Callable

# Steps of which a device may still owe the time; while it owes as many, further steps go untimed.
MAX_PENDING = 8
_MILLISECONDS_PER_SECOND = 1000.0


class ForwardTimer(Protocol):
    """Times one step after the other: start, stop, where tokens are drawn stop_draw, then take."""

    def start(self, step_id: int) -> None:
        """Call right before the model."""
        ...

    def stop(self) -> None:
        """Call right after the model call has returned."""
        ...

    def stop_draw(self) -> None:
        """Call when tokens have been drawn, which began at `stop`."""
        ...

    def take(self) -> list[StepTimes]:
        """The times that have become known since the last call, oldest step first; never waits."""
        ...


class WallTimer:
    """For devices whose model call returns when it is done: the CPU. Times are known at once."""

    def __init__(self) -> None:
        self._step_id = -1
        self._marks: list[float] = []  # start, stop, stop_draw

    def start(self, step_id: int) -> None:
        """See ForwardTimer."""
        self._step_id = step_id
        self._marks = [time.perf_counter()]

    def stop(self) -> None:
        """See ForwardTimer."""
        self._marks.append(time.perf_counter())

    def stop_draw(self) -> None:
        """See ForwardTimer."""
        self._marks.append(time.perf_counter())

    def take(self) -> list[StepTimes]:
        """See ForwardTimer."""
        if not self._marks:
            return []
        started, stopped, *_ = self._marks
        drawn = self._marks[-1]
        self._marks = []
        return [
            StepTimes(
                step_id=self._step_id,
                stage_seconds=[stopped - started],
                draw_seconds=drawn - stopped,
            )
        ]


class TimedEvent(Protocol):
    """A mark in a device's queue of work; all that is needed of `torch.Event`."""

    def record(self) -> None:
        """Put the mark after what has been queued so far."""
        ...

    def query(self) -> bool:
        """Whether the device has passed it; never waits."""
        ...

    def elapsed_time(self, end: Any, /) -> float:
        """Milliseconds from this mark to a later one; only once both have been passed."""
        ...


class _Marks:
    """The events of one step."""

    def __init__(self, make_event: Callable[[], TimedEvent]) -> None:
        self.step_id = -1
        self.begin = make_event()
        self.end = make_event()
        self.drawn = make_event()
        self.has_drawn = False

    def have_passed(self) -> bool:
        """Whether the device is past the last of them, and so past all: they are on one stream."""
        return self.drawn.query() if self.has_drawn else self.end.query()

    def times(self) -> StepTimes:
        """To be asked once they have passed."""
        seconds = self.begin.elapsed_time(self.end) / _MILLISECONDS_PER_SECOND
        draw = self.end.elapsed_time(self.drawn) / _MILLISECONDS_PER_SECOND if self.has_drawn else 0
        return StepTimes(step_id=self.step_id, stage_seconds=[seconds], draw_seconds=draw)


class EventTimer:
    """For an accelerator: events on its current stream, polled and never synchronised on.

    Args:
        make_event: makes an event that can be timed.
    """

    def __init__(self, make_event: Callable[[], TimedEvent]) -> None:
        self._make_event = make_event
        self._running: _Marks | None = None
        self._pending: deque[_Marks] = deque()
        self._spare: list[_Marks] = []  # may be recorded again

    def start(self, step_id: int) -> None:
        """See ForwardTimer."""
        self._running = None
        if len(self._pending) < MAX_PENDING:
            self._running = self._spare.pop() if self._spare else _Marks(self._make_event)
            self._running.step_id = step_id
            self._running.has_drawn = False
            self._running.begin.record()

    def stop(self) -> None:
        """See ForwardTimer."""
        if self._running is not None:
            self._running.end.record()
            self._pending.append(self._running)

    def stop_draw(self) -> None:
        """See ForwardTimer."""
        if self._running is not None:
            self._running.drawn.record()
            self._running.has_drawn = True

    def take(self) -> list[StepTimes]:
        """See ForwardTimer."""
        known = []
        while self._pending and self._pending[0].have_passed():
            marks = self._pending.popleft()
            known.append(marks.times())
            self._spare.append(marks)
        return known


def timer_for(device: torch.device) -> ForwardTimer:
    """The timer that tells the truth on `device`."""
    if device.type == "cpu":
        return WallTimer()
    return EventTimer(lambda: torch.Event(device, enable_timing=True))
