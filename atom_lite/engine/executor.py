"""Where plans run: on this process's own thread, or over the stages of a pipeline.

The head schedules and commits; an executor takes plans and gives results back in the same order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

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
            Exception: a step or a stage failed; the head ends the run then.
        """
        ...

    def close(self) -> None:
        """Let what runs end, or cut it off after some seconds; also after a failure."""
        ...


class LocalExecutor:
    """One stage: the forward thread of this process runs the whole model.

    Args:
        runner: runs plans, on the forward thread only.
        forward: the thread on which the runner was made.
        wake: called on the forward thread whenever `take_results` has news.
    """

    def __init__(
        self, runner: PlanRunner, forward: ForwardThread, wake: Callable[[], None]
    ) -> None:
        self._runner = runner
        self._forward = forward
        self._wake = wake

    def start(self, plan: StepPlan) -> None:
        """See Executor."""
        self._forward.start(lambda: self._runner.run(plan), self._wake)

    def last_handed_on(self) -> int:
        """None: a step that has run is over."""
        return -1

    def take_results(self) -> list[StepResult]:
        """See Executor."""
        return self._forward.take_results()

    def close(self) -> None:
        """See Executor."""
        self._forward.stop(LAST_STEP_SECONDS)
