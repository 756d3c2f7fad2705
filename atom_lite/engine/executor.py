"""Where plans run: on this process's own thread, or over the stages of a pipeline.

The head schedules and commits; an executor takes plans and gives results back in the same order.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from atom_lite.engine.step_watch import StepWatch
from atom_lite.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable

    from atom_lite.engine.forward_thread import ForwardThread
    from atom_lite.messages import StepPlan, StepResult

# A step that is running when the engine stops gets this long to end; its result is not needed.
LAST_STEP_SECONDS = 5.0


class PlanRunner(Protocol):
    """What runs a whole plan: `worker.Runner`, or a fake with the same contract."""

    def run(self, plan: StepPlan) -> StepResult:
        """Run one step to its end."""
        ...


class Executor(Protocol):
    """Runs plans in order. Only the head's thread calls it."""

    def start(self, plan: StepPlan) -> None:
        """Begin a step; returns at once."""
        ...

    def last_handed_on(self) -> int:
        """The latest step that stage 0 has finished while others still work on it; -1 for none."""
        ...

    def take_results(self) -> list[StepResult]:
        """Results that came back since the last call, in order; never waits.

        Raises:
            Exception: a step or a stage failed, or a step is overdue; the head ends the run then.
        """
        ...

    def close(self) -> None:
        """Let what runs end, or cut it off after some seconds; also after a failure."""
        ...


def overdue_message(where: str, step_id: int, limit_seconds: float) -> str:
    """What the log, /health and open requests say of a step that never came back."""
    return (
        f"{where} has not ended step {step_id} within --step-timeout-seconds {limit_seconds:g}; "
        "its forward pass is stuck, or its steps need a longer limit"
    )


class LocalExecutor:
    """One stage: the forward thread of this process runs the whole model.

    Args:
        runner: runs plans, on the forward thread only.
        forward: the thread on which the runner was made.
        wake: called on the forward thread whenever `take_results` has news.
        step_timeout_seconds: how long a step may take; 0 is for ever.
    """

    def __init__(
        self,
        runner: PlanRunner,
        forward: ForwardThread,
        wake: Callable[[], None],
        *,
        step_timeout_seconds: float = 0.0,
    ) -> None:
        self._runner = runner
        self._forward = forward
        self._wake = wake
        self._watch = StepWatch(step_timeout_seconds)

    def start(self, plan: StepPlan) -> None:
        """See Executor."""
        self._watch.start(plan.step_id, time.monotonic())
        self._forward.start(lambda: self._runner.run(plan), self._wake)

    def last_handed_on(self) -> int:
        """None: a step that has run is over."""
        return -1

    def take_results(self) -> list[StepResult]:
        """See Executor."""
        results = self._forward.take_results()
        now = time.monotonic()
        for result in results:
            self._watch.finish(result.step_id, now)
        if (step_id := self._watch.overdue(now)) is not None:
            raise EngineError(overdue_message("the model", step_id, self._watch.limit_seconds))
        return results

    def close(self) -> None:
        """See Executor."""
        self._forward.stop(LAST_STEP_SECONDS)
