"""Timings that a device has not finished, polled and never waited for.

A synchronisation to read a timing would cost the very overlap that is measured. So at most eight
are in flight; while eight are, further steps go untimed. Pure: what a timing is (a pair of CUDA
events, a perf_counter difference) is the worker's business. Head process.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, NamedTuple, Protocol, TypeVar

MAX_PENDING = 8

Tag = TypeVar("Tag")


class DeviceTiming(Protocol):
    """A duration that is being measured."""

    def is_done(self) -> bool:
        """Whether `seconds` can be read without waiting."""
        ...

    def seconds(self) -> float:
        """The duration; only called once `is_done` said so."""
        ...


class Finished(NamedTuple, Generic[Tag]):
    """A measured step."""

    tag: Tag
    seconds: float


class PendingTimings(Generic[Tag]):
    """First in, first out; one unfinished timing holds back those behind it."""

    def __init__(self) -> None:
        self._pending: deque[tuple[Tag, DeviceTiming]] = deque()

    @property
    def has_room(self) -> bool:
        """Whether another step may be timed."""
        return len(self._pending) < MAX_PENDING

    def add(self, tag: Tag, timing: DeviceTiming) -> None:
        """Keep a timing that has been started; only while there is room."""
        assert self.has_room
        self._pending.append((tag, timing))

    def drain(self) -> list[Finished[Tag]]:
        """Those that are done, oldest first."""
        finished = []
        while self._pending and self._pending[0][1].is_done():
            tag, timing = self._pending.popleft()
            finished.append(Finished(tag, timing.seconds()))
        return finished
