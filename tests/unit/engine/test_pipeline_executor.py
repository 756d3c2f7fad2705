"""The head's executor over fakes: what comes in which order, and whose times a result carries."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import msgspec
import pytest

from atom_lite.engine.forward_thread import ForwardThread
from atom_lite.engine.pipeline import Links, PipelineExecutor
from atom_lite.messages import StepPlan, StepResult, StepRow, StepTimes
from atom_lite.parallel.link import PipelineError, Returned
from atom_lite.worker.runner import StageOutput

if TYPE_CHECKING:
    from atom_lite.engine.followers import Followers
    from atom_lite.parallel.link import HiddenLink
    from atom_lite.worker.runner import Runner

WAIT_SECONDS = 10.0


class SwiftStages:
    """Two followers that have answered a plan as soon as it was sent.

    Args:
        middle_times: of stage 1, by the step with which it tells them.
        last_times: of stage 2, the same.
    """

    def __init__(
        self,
        middle_times: dict[int, list[StepTimes]] | None = None,
        last_times: dict[int, list[StepTimes]] | None = None,
    ) -> None:
        self._middle_times = middle_times or {}
        self._last_times = last_times or {}
        self._returned: list[Returned] = []

    def send_plan(self, step_id: int, body: bytes) -> None:
        middle = msgspec.msgpack.encode(self._middle_times.get(step_id, []))
        result = StepResult(step_id=step_id, tokens=[], times=self._last_times.get(step_id, []))
        self._returned.append(Returned(step_id, msgspec.msgpack.encode(result), [middle]))

    def poll_results(self) -> list[Returned]:
        returned, self._returned = self._returned, []
        return returned

    def stage_of(self, step_id: int) -> int:
        return 1

    def close(self) -> None:
        pass


class Stage0:
    """Stage 0: its times by the step with which it tells them; may come to its turn late."""

    info = SimpleNamespace(num_stages=3)

    def __init__(self, times: dict[int, list[StepTimes]] | None = None) -> None:
        self.go_on = threading.Event()
        self._times = times or {}

    def run_stage(self, plan: StepPlan) -> StageOutput:
        self.go_on.wait(WAIT_SECONDS)
        return StageOutput(None, [], self._times.get(plan.step_id, []))


def executor_of(
    stage: Stage0, followers: SwiftStages, forward: ForwardThread, **options: float
) -> PipelineExecutor:
    links = Links(
        control=followers,
        hidden=cast("HiddenLink", None),
        followers=cast("Followers", None),
    )
    options.setdefault("step_timeout_seconds", 0.0)
    return PipelineExecutor(cast("Runner", stage), forward, links, lambda: None, **options)


def plan_of(step_id: int) -> StepPlan:
    row = StepRow(sequence_id=1, epoch=0, start=0, num_tokens=1, sample=False)
    return StepPlan(step_id=step_id, starts=[], rows=[row])


def of_one(*pairs: tuple[int, float]) -> list[StepTimes]:
    return [StepTimes(step_id=step_id, stage_seconds=[seconds]) for step_id, seconds in pairs]


def test_a_plan_that_only_says_what_to_forget_may_be_answered_before_stage_0_has_seen_it() -> None:
    stage, forward = Stage0(), ForwardThread()
    executor = executor_of(stage, SwiftStages(), forward)
    executor.start(StepPlan(step_id=3, starts=[], rows=[], drops=[(-1, 0)]))
    (result,) = executor.take_results()
    assert (result.step_id, result.times) == (3, [])
    stage.go_on.set()
    assert forward.stop(WAIT_SECONDS)


def test_a_result_comes_home_before_its_times_which_come_with_a_later_one() -> None:
    stage = Stage0({1: of_one((0, 0.1)), 2: of_one((1, 0.1), (2, 0.1))})
    followers = SwiftStages(
        {0: of_one((0, 0.2)), 1: of_one((1, 0.2))}, {1: of_one((0, 0.3), (1, 0.3))}
    )
    stage.go_on.set()
    forward = ForwardThread()
    executor = executor_of(stage, followers, forward)
    told = []
    for step_id in range(3):
        executor.start(plan_of(step_id))
        forward.call(lambda: None)  # stage 0 has had its turn
        (result,) = executor.take_results()
        assert result.step_id == step_id
        told.append([(times.step_id, times.stage_seconds) for times in result.times])
    assert told == [[], [(0, [0.1, 0.2, 0.3])], [(1, [0.1, 0.2, 0.3])]]
    assert forward.stop(WAIT_SECONDS)


def test_a_step_that_stage_0_has_not_ended_is_overdue_there() -> None:
    stage, forward = Stage0(), ForwardThread()
    stages = SwiftStages()
    executor = executor_of(stage, stages, forward, step_timeout_seconds=1e-9)
    executor.start(plan_of(0))
    stages.poll_results()  # nobody answers
    with pytest.raises(PipelineError, match="stage 0 has not ended step 0"):
        executor.take_results()
    stage.go_on.set()
    forward.call(lambda: None)
    with pytest.raises(PipelineError, match="stage 1 has not ended step 0"):
        executor.take_results()
    assert forward.stop(WAIT_SECONDS)
