"""What a step that may run ahead is worth: the real scheduler, stages with a virtual clock."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

import pytest

from atom_lite.messages import SequenceFinished
from atom_lite.scheduler.scheduler import Scheduler
from tests.fakes.scheduler_inputs import CappedChunks, answer, make_limits, make_submission

if TYPE_CHECKING:
    from atom_lite.messages import SequenceEvent, StepPlan

STAGE_SECONDS = 1.0  # of every step on every stage
NUM_CHUNKS = 40


class Clockwork:
    """Equal stages, each hop between neighbours and home costs the same; events in time order."""

    def __init__(self, scheduler: Scheduler, num_stages: int, hop_seconds: float) -> None:
        self.now = 0.0
        self.events: list[SequenceEvent] = []
        self._scheduler = scheduler
        self._free_at = [0.0] * num_stages
        self._hop_seconds = hop_seconds
        self._due: list[tuple[float, int, StepPlan | None]] = []  # None: stage 0 handed it on

    def run(self) -> float:
        """Until nothing is left; the time of the last result."""
        self._plan()
        while self._due:
            self.now, step_id, plan = heappop(self._due)
            if plan is None:
                self._scheduler.hand_on(step_id)
            else:
                self.events += self._scheduler.commit(answer(plan), self.now)
            self._plan()
        assert not self._scheduler.has_work()
        return self.now

    def finish_seconds(self, sequence_id: int) -> float:
        """When a sequence ended."""
        (end,) = [
            event
            for event in self.events
            if isinstance(event, SequenceFinished) and event.sequence_id == sequence_id
        ]
        return end.timings.finish_time

    def _plan(self) -> None:
        while (plan := self._scheduler.schedule(self.now)) is not None:
            at = self.now
            for stage, free_at in enumerate(self._free_at):
                at = max(at, free_at) + STAGE_SECONDS
                self._free_at[stage] = at
                if stage == 0:
                    heappush(self._due, (at, plan.step_id, None))
                at += self._hop_seconds
            heappush(self._due, (at, plan.step_id, plan))


def seconds_of_a_long_prompt(num_stages: int, hop_seconds: float, *, acknowledged: bool) -> float:
    scheduler = Scheduler(
        make_limits(pipeline_depth=num_stages, max_model_len=512, num_blocks=128),
        planner=CappedChunks(8),
        needs_acknowledgement=lambda: acknowledged,
    )
    scheduler.submit(make_submission(0, 8 * NUM_CHUNKS, 1), 0.0)
    return Clockwork(scheduler, num_stages, hop_seconds).run()


def shortest(num_stages: int, hop_seconds: float) -> float:
    """No stage ever waits for the head."""
    return (NUM_CHUNKS + num_stages - 1) * STAGE_SECONDS + num_stages * hop_seconds


@pytest.mark.parametrize("num_stages", [2, 4, 8])
def test_a_hop_of_a_tenth_of_a_stage_costs_nothing_where_a_chunk_runs_ahead(
    num_stages: int,
) -> None:
    best = shortest(num_stages, 0.1)
    assert seconds_of_a_long_prompt(num_stages, 0.1, acknowledged=False) == pytest.approx(best)
    assert seconds_of_a_long_prompt(num_stages, 0.1, acknowledged=True) > 1.06 * best


def test_free_hops_need_nobody_to_run_ahead() -> None:
    best = shortest(4, 0.0)
    assert seconds_of_a_long_prompt(4, 0.0, acknowledged=True) == pytest.approx(best)
    assert seconds_of_a_long_prompt(4, 0.0, acknowledged=False) == pytest.approx(best)


def last_token_seconds(acknowledged: bool) -> float:
    """When a stream ends that was there before a long prompt came."""
    scheduler = Scheduler(
        make_limits(pipeline_depth=4, max_model_len=512, num_blocks=256),
        planner=CappedChunks(8),
        needs_acknowledgement=lambda: acknowledged,
    )
    scheduler.submit(make_submission(0, 3, 30), 0.0)
    first = scheduler.schedule(0.0)
    assert first is not None
    scheduler.commit(answer(first), 0.0)
    scheduler.submit(make_submission(1, 8 * NUM_CHUNKS, 1), 0.0)
    clockwork = Clockwork(scheduler, 4, 0.1)
    clockwork.run()
    return clockwork.finish_seconds(0)


def test_a_running_stream_is_no_slower_for_chunks_that_may_run_ahead() -> None:
    assert last_token_seconds(acknowledged=False) <= last_token_seconds(acknowledged=True)
