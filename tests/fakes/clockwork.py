"""The real scheduler over virtual stages with a virtual clock: a server without a model or a wait.

Stages check every KV read (`virtual_pipeline`); how long each takes for a step is a function given
by the test. Steps take their turns on a stage; a hop, also the one home, delays what it carries.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

import msgspec

from atom_lite.messages import SequenceFinished, StepResult, StepTimes, TokensGenerated
from tests.fakes.virtual_pipeline import VirtualPipeline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from atom_lite.engine.chunking_desk import ChunkingDesk
    from atom_lite.messages import SequenceEvent, StepPlan, SubmitSequence
    from atom_lite.scheduler.limits import SchedulerLimits
    from atom_lite.scheduler.scheduler import Scheduler

    StageSeconds = Callable[[StepPlan, int], float]  # of a plan on a stage


class Clockwork:
    """Drives one scheduler like the head does, in the order of virtual time."""

    def __init__(
        self,
        scheduler: Scheduler,
        limits: SchedulerLimits,
        stage_seconds: StageSeconds,
        *,
        hop_seconds: float = 0.0,
        desk: ChunkingDesk | None = None,
    ) -> None:
        self.now = 0.0
        self.outputs: dict[int, list[int]] = {}
        self.ended: dict[int, SequenceFinished] = {}
        self.num_events = 0
        self._scheduler = scheduler
        self._stage_seconds = stage_seconds
        self._hop_seconds = hop_seconds
        self._desk = desk
        self._pipeline = VirtualPipeline(
            limits.pipeline_depth, limits.num_blocks, limits.block_size
        )
        self._free_at = [0.0] * limits.pipeline_depth
        self._due: list[tuple[float, int, int, StepResult]] = []  # time, step, stage, its answer

    def submit(self, *messages: SubmitSequence) -> None:
        """Sequences arrive, all at the same time."""
        for message in messages:
            self._take(self._scheduler.submit(message, self.now))
        self._plan()

    def abort(self, sequence_id: int) -> None:
        """A client leaves."""
        self._take(self._scheduler.abort(sequence_id, "abort", self.now))
        self._plan()

    def run(self, most_events: int = 1_000_000) -> None:
        """Until nothing is left to do, or this many stages have finished a step."""
        for _ in range(most_events):
            if not self._due:
                assert not self._scheduler.has_work(), "sequences wait and nothing is planned"
                return
            self._next_event()

    def _next_event(self) -> None:
        self.num_events += 1
        self.now, step_id, stage, result = heappop(self._due)
        self._pipeline.tick(stage)
        drawn = self._pipeline.take_result()
        if drawn is not None:
            result = msgspec.structs.replace(result, tokens=drawn.tokens)
            self._take(self._scheduler.commit(result, self.now))
            if self._desk is not None:
                self._desk.finished(result)
        elif stage == 0:
            self._scheduler.hand_on(step_id)
        self._plan()
        self._scheduler.check_integrity()

    def _plan(self) -> None:
        while (plan := self._scheduler.schedule(self.now)) is not None:
            if self._desk is not None:
                self._desk.planned(plan)
            self._pipeline.send(plan)
            seconds = [self._stage_seconds(plan, stage) for stage in range(len(self._free_at))]
            times = StepTimes(step_id=plan.step_id, stage_seconds=seconds)
            result = StepResult(step_id=plan.step_id, tokens=[], times=[times])
            at = self.now
            last = len(seconds) - 1
            for stage, duration in enumerate(seconds):
                at = self._free_at[stage] = max(at, self._free_at[stage]) + duration
                home = self._hop_seconds if stage == last else 0.0
                heappush(self._due, (at + home, plan.step_id, stage, result))
                at += self._hop_seconds

    def _take(self, events: Iterable[SequenceEvent]) -> None:
        for event in events:
            assert event.sequence_id not in self.ended, "an event after the terminal one"
            if isinstance(event, TokensGenerated):
                self.outputs.setdefault(event.sequence_id, []).extend(event.token_ids)
            else:
                self.ended[event.sequence_id] = event
