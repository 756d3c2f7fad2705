"""How long each pipeline stage was busy, and how long it stood idle although there was work.

    work      wall time during which at least one step was in flight: planned by the head and not
              yet committed
    busy      of a stage: the sum of its model calls, as the stages time them; of the last one also
              the LM head and the drawing of tokens
    bubble    of a stage: work - busy; the hop to it, waiting for the stage before and the time in
              which a result travels back are all in it

An idle pipeline has no bubbles. Times are added when a step is committed; while steps are in flight
the earlier stages may have done more than has been reported, so within a burst a bubble can be
ahead by the steps in flight, never by more, and is right again when the burst ends: as a counter
for Prometheus it keeps its highest value and never falls.

Pure; runs in the head process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from atom_lite.messages import StepTimes


class PipelineOccupancy:
    """Totals since start, one per stage; as many stages as results have shown."""

    def __init__(self) -> None:
        self._in_flight: set[int] = set()
        self._counted_until = 0.0  # of the work, while there is some
        self._work_seconds = 0.0
        self.busy_seconds: list[float] = []
        self.bubble_seconds: list[float] = []

    def start(self, step_id: int, now: float) -> None:
        """A step has been sent to the stages."""
        if not self._in_flight:
            self._counted_until = now
        self._in_flight.add(step_id)

    def add(self, times: StepTimes) -> None:
        """How long a step took on each stage has become known; before `finish`, or later."""
        unseen = len(times.stage_seconds) - len(self.busy_seconds)
        # New lists: snapshots that were handed out keep theirs.
        busy = self.busy_seconds + [0.0] * unseen
        for stage, seconds in enumerate(times.stage_seconds):
            busy[stage] += seconds
        busy[-1] += times.draw_seconds
        self.busy_seconds = busy
        self.bubble_seconds = self.bubble_seconds + [0.0] * unseen

    def finish(self, step_id: int, now: float) -> None:
        """A step came back."""
        self._in_flight.remove(step_id)
        self._work_seconds += now - self._counted_until
        self._counted_until = now
        self.bubble_seconds = [
            max(bubble, self._work_seconds - busy)
            for bubble, busy in zip(self.bubble_seconds, self.busy_seconds, strict=True)
        ]
