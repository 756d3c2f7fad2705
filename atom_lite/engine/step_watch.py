"""Notices a step that never comes back.

A process that dies or is stopped is noticed by its connection and its heartbeats. A forward pass
that is stuck (a deadlock, a kernel that spins) has neither sign: its process lives, its other
threads answer, and no result comes. So the executor watches the oldest step in flight: the time
counts from when it became the oldest, since a step behind others only waits its turn.

Pure: no clock of its own. Used by the head's thread only.
"""

from __future__ import annotations

from collections import deque


class StepWatch:
    """The steps in flight, oldest first.

    Args:
        limit_seconds: how long the oldest may take; 0 is for ever.
    """

    def __init__(self, limit_seconds: float) -> None:
        self.limit_seconds = limit_seconds
        self._in_flight: deque[int] = deque()
        self._oldest_since = 0.0

    def start(self, step_id: int, now: float) -> None:
        """A step begins."""
        if not self._in_flight:
            self._oldest_since = now
        self._in_flight.append(step_id)

    def finish(self, step_id: int, now: float) -> None:
        """Its result is here."""
        oldest = self._in_flight.popleft()
        assert oldest == step_id, f"result of step {step_id} came where {oldest} was due"
        self._oldest_since = now

    def overdue(self, now: float) -> int | None:
        """The oldest step, if it takes longer than the limit."""
        if not self._in_flight or not self.limit_seconds:
            return None
        return self._in_flight[0] if now - self._oldest_since > self.limit_seconds else None
