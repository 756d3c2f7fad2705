"""Joins the times of a step that its stages report one by one.

Each stage tells a step's time when it knows it: on a CPU at once, on an accelerator with a later
step, and not at all where its timer had no room. Every stage's times come in the order of steps, so
the next time of each stage either belongs to the same step or shows which stages skipped one.

Pure; runs in the head process, and wherever several stages are run in one.
"""

from __future__ import annotations

from collections import deque
from itertools import chain
from typing import TYPE_CHECKING

from atom_lite.messages import StepTimes

if TYPE_CHECKING:
    from collections.abc import Iterable


class TimesByStage:
    """Times on their way from one stage's to all stages'. `put` may be called by other threads."""

    def __init__(self, num_stages: int) -> None:
        self._stages: list[deque[StepTimes]] = [deque() for _ in range(num_stages)]

    def put(self, stage: int, times: Iterable[StepTimes]) -> None:
        """What one stage knows of its own part of some steps."""
        self._stages[stage].extend(times)

    def take(self) -> list[StepTimes]:
        """The steps that every stage has told the time of since the last call, oldest first."""
        joined = []
        while all(self._stages):
            newest = max(times[0].step_id for times in self._stages)
            behind = [times for times in self._stages if times[0].step_id < newest]
            for times in behind:
                times.popleft()  # another stage did not time this step
            if not behind:
                joined.append(_joined([times.popleft() for times in self._stages]))
        return joined


def _joined(parts: list[StepTimes]) -> StepTimes:
    return StepTimes(
        step_id=parts[0].step_id,
        stage_seconds=list(chain.from_iterable(part.stage_seconds for part in parts)),
        draw_seconds=sum(part.draw_seconds for part in parts),
    )
