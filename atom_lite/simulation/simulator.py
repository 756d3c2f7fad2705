"""The head's loop under a virtual clock: the real scheduler and policy over simulated stages.

The calls are those of `engine/head.py` in the same order (submit what arrived, commit what came
back, schedule until nothing can run), so in-flight depth, decode groups, budgets and KV bookkeeping
are the real code. Between two events nothing happens, so the clock jumps from one to the next.
The head itself takes no time here. Runs offline; no torch, no sleep, no thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from atom_lite.chunking.step_contents import step_sample
from atom_lite.errors import EngineError
from atom_lite.messages import (
    SequenceEvent,
    SequenceFinished,
    StepPlan,
    StepResult,
    TokensGenerated,
)
from atom_lite.scheduler.scheduler import Scheduler
from atom_lite.simulation.measure import RunRecord, SequenceRecord
from atom_lite.simulation.stages import PipelineSpec, SimulatedStages

if TYPE_CHECKING:
    from atom_lite.chunking.calibrator import StepSample
    from atom_lite.chunking.controller import ChunkingController
    from atom_lite.scheduler.limits import SchedulerLimits
    from atom_lite.simulation.workloads import Workload


class Simulation:
    """One run; `now` is the virtual time in seconds.

    Args:
        pipeline: the machine.
        limits: of the scheduler; `pipeline_depth` may differ from the number of stages.
        controller: the chunk-size policy. It keeps what it has learned for a next run.
        workload: who asks for what, and when.
        audit: check every KV read and the scheduler's books after every turn; for small prompts.
    """

    def __init__(
        self,
        pipeline: PipelineSpec,
        limits: SchedulerLimits,
        controller: ChunkingController,
        workload: Workload,
        *,
        audit: bool = False,
    ) -> None:
        self.now = 0.0
        self.scheduler = Scheduler(
            limits,
            planner=controller.planner,
            report=controller.report,
            needs_acknowledgement=lambda: controller.needs_acknowledgement,
            model_report=controller.model_report,
        )
        self._pipeline = pipeline
        self._stages = SimulatedStages(pipeline, audit=limits if audit else None)
        self._controller = controller
        self._workload = workload
        self._audit = audit
        self._pending: dict[int, StepSample] = {}  # step id -> what it holds, times still missing
        self._records: dict[int, SequenceRecord] = {}
        self._notices: list[str] = []

    def run(self) -> RunRecord:
        """Until every request has got its last token.

        Raises:
            EngineError: nothing can run and nothing will come back; a bug of the scheduler.
        """
        while self.advance():
            pass
        if self.scheduler.has_work():
            raise EngineError(f"the scheduler is stuck at {self.now} s with sequences waiting")
        return RunRecord(
            num_stages=self._pipeline.num_stages,
            sequences=tuple(self._records.values()),
            intervals=tuple(self._stages.intervals),
            notices=tuple(self._notices),
        )

    def advance(self) -> bool:
        """Jump to the next event and do what the head does then; False when none is left."""
        coming = (self._stages.next_event_seconds, self._workload.next_arrival_seconds)
        times = [time for time in coming if time is not None]
        if not times:
            return False
        self.now = max(self.now, min(times))
        events = self._submit_due()
        while (result := self._stages.take_result(self.now)) is not None:
            events += self._commit(result)
        self.scheduler.hand_on(self._stages.take_handed_on(self.now))
        while (plan := self.scheduler.schedule(self.now)) is not None:
            self._start(plan)
        for event in events:
            self._note(event)
        if self._audit:
            self.scheduler.check_integrity()
        return True

    def _submit_due(self) -> list[SequenceEvent]:
        events: list[SequenceEvent] = []
        for request in self._workload.take_due(self.now):
            sequence_id = len(self._records)
            self._records[sequence_id] = SequenceRecord(
                sequence_id=sequence_id,
                arrival_seconds=request.arrival_seconds,
                prompt_tokens=request.prompt_tokens,
            )
            message = request.submission(sequence_id, request.arrival_seconds)
            refused = self.scheduler.submit(message, self.now)
            if not refused:
                cached = self.scheduler.cached_tokens(sequence_id)
                self._controller.submitted(sequence_id, request.prompt_tokens, cached)
            events += refused
        return events

    def _start(self, plan: StepPlan) -> None:
        self._stages.start(plan, self.now)
        contents = step_sample(plan)
        if self._controller.wants_sample(
            num_sequences=len(plan.rows), num_prefills=len(contents.chunks)
        ):
            self._pending[plan.step_id] = contents

    def _commit(self, result: StepResult) -> list[SequenceEvent]:
        events = self.scheduler.commit(result, self.now)
        notices = []
        for times in result.times:
            contents = self._pending.pop(times.step_id, None)
            if contents is not None:
                sample = contents._replace(
                    stage_seconds=tuple(times.stage_seconds), draw_seconds=times.draw_seconds
                )
                notices += self._controller.record(sample)
        notices += self._controller.end_step()
        notices += self.scheduler.take_notices()
        self._notices += [f"{self.now:.3f} s: {notice.text}" for notice in notices]
        return events

    def _note(self, event: SequenceEvent) -> None:
        record = self._records[event.sequence_id]
        if isinstance(event, TokensGenerated):
            record.token_seconds += [self.now] * len(event.token_ids)
            record.cached_tokens = max(record.cached_tokens, event.num_cached_tokens)
        elif isinstance(event, SequenceFinished):
            record.num_preemptions = event.num_preemptions
            record.error = event.error
            self._workload.finished(self.now)


def run_startup_sweep(controller: ChunkingController, pipeline: PipelineSpec) -> list[str]:
    """The forwards that the engine times before its first request, on the simulated stages.

    Returns:
        What the policy had to say.
    """
    sweep = controller.startup()
    if sweep is None:
        return []
    stages = SimulatedStages(pipeline)
    while (shape := sweep.next_shape()) is not None:
        sweep.finish_shape(stages.shape_seconds(shape, attention=not sweep.is_attention_free))
    return [notice.text for notice in sweep.finish()]
