"""The head's executor over fakes: what comes in which order, and whose times a result carries."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, cast

import msgspec

from atom_lite.engine.forward_thread import ForwardThread
from atom_lite.engine.pipeline import Links, PipelineExecutor
from atom_lite.messages import StepPlan, StepResult
from atom_lite.parallel.link import Returned
from atom_lite.worker.runner import StageOutput

if TYPE_CHECKING:
    from atom_lite.engine.followers import Followers
    from atom_lite.parallel.link import HiddenLink
    from atom_lite.worker.runner import Runner

WAIT_SECONDS = 10.0


class SwiftStages:
    """Followers that have answered a plan as soon as it was sent."""

    def __init__(self) -> None:
        self._returned: list[Returned] = []

    def send_plan(self, step_id: int, body: bytes) -> None:
        result = StepResult(step_id=step_id, tokens=[], stage_seconds=[0.0])
        self._returned.append(Returned(step_id, msgspec.msgpack.encode(result), [0.0]))

    def poll_results(self) -> list[Returned]:
        returned, self._returned = self._returned, []
        return returned

    def stage_of(self, step_id: int) -> int:
        return 1

    def close(self) -> None:
        pass


class HeldStage:
    """Stage 0, whose thread comes to its turn late."""

    def __init__(self) -> None:
        self.go_on = threading.Event()

    def run_stage(self, plan: StepPlan) -> StageOutput:
        self.go_on.wait(WAIT_SECONDS)
        return StageOutput(None, [], 0.0)


def test_a_plan_that_only_says_what_to_forget_may_be_answered_before_stage_0_has_seen_it() -> None:
    stage, forward = HeldStage(), ForwardThread()
    links = Links(
        control=SwiftStages(),
        hidden=cast("HiddenLink", None),
        followers=cast("Followers", None),
    )
    runner = cast("Runner", stage)
    executor = PipelineExecutor(runner, forward, links, lambda: None, step_timeout_seconds=0.0)
    executor.start(StepPlan(step_id=3, starts=[], rows=[], drops=[(-1, 0)]))
    (result,) = executor.take_results()
    assert (result.step_id, result.stage_seconds) == (3, [0.0, 0.0, 0.0])
    stage.go_on.set()
    assert forward.stop(WAIT_SECONDS)
    kept: dict[int, Any] = executor._own_seconds
    assert not kept
