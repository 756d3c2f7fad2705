"""Sequences that hold nothing yet, earliest in order first.

Why a heap: every queue order (arrival; priority, then arrival; with due times between the two under
policy `slo`) is one sort key that a sequence keeps, a preempted one goes back to its own place, and
an abort anywhere in a long queue must cost O(log n). Pure; runs in the head process.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from atom_lite.scheduler.sequence import State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atom_lite.scheduler.sequence import Sequence, Turn


class WaitingQueue:
    """A heap with lazy removal: an entry whose sequence no longer waits is skipped when met."""

    def __init__(self) -> None:
        self._heap: list[tuple[Turn, Sequence]] = []
        self._num_waiting = 0
        self.num_tokens = 0  # of all that wait

    def __len__(self) -> int:
        return self._num_waiting

    def __iter__(self) -> Iterator[Sequence]:
        """Waiting sequences in no particular order."""
        return (sequence for _, sequence in self._heap if sequence.state is State.WAITING)

    def push(self, sequence: Sequence) -> None:
        """Add a sequence at its place; `Sequence.turn` is unique, so sequences never compare."""
        assert sequence.state is State.WAITING
        heapq.heappush(self._heap, (sequence.turn, sequence))
        self._num_waiting += 1
        self.num_tokens += len(sequence.tokens)

    def peek(self) -> Sequence | None:
        """The earliest waiting sequence, or None."""
        while self._heap:
            sequence = self._heap[0][1]
            if sequence.state is State.WAITING:
                return sequence
            heapq.heappop(self._heap)
        return None

    def pop(self) -> Sequence:
        """Remove and return the earliest waiting sequence, which must exist."""
        sequence = self.peek()
        assert sequence is not None
        heapq.heappop(self._heap)
        self._num_waiting -= 1
        self.num_tokens -= len(sequence.tokens)
        return sequence

    def forget(self, sequence: Sequence) -> None:
        """Note that a queued sequence has finished; its `state` says so already."""
        assert sequence.state is State.FINISHED
        self._num_waiting -= 1
        self.num_tokens -= len(sequence.tokens)
        # Aborted entries behind a blocked head would pile up: rebuild when they are the majority.
        if len(self._heap) > 2 * self._num_waiting + 16:
            self._heap = [entry for entry in self._heap if entry[1].state is State.WAITING]
            heapq.heapify(self._heap)
