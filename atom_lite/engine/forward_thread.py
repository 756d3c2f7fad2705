"""The thread that runs the model, so that the head never waits for its own forward pass.

torch releases the GIL inside its operations; while they run, the head delivers results, takes new
requests and aborts. Plans go in and results come out in order (first in, first out).
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from atom_lite.messages import StepPlan, StepResult


class PlanRunner(Protocol):
    """What runs a plan: `worker.Runner`, or a fake with the same contract."""

    def run(self, plan: StepPlan) -> StepResult:
        """Run one step to its end."""
        ...


class ForwardThread:
    """Runs plans in order on a thread of its own.

    Args:
        runner: runs one plan; called on this thread only.
        on_done: called on this thread after each plan; must be cheap and safe from any thread.
    """

    def __init__(self, runner: PlanRunner, on_done: Callable[[], None]) -> None:
        self._runner = runner
        self._on_done = on_done
        self._plans: queue.SimpleQueue[StepPlan | None] = queue.SimpleQueue()
        self._results: deque[StepResult | BaseException] = deque()
        self._thread = threading.Thread(target=self._run, name="forward", daemon=True)
        self._thread.start()

    def start(self, plan: StepPlan) -> None:
        """Queue a plan; returns at once."""
        self._plans.put(plan)

    def take_result(self) -> StepResult | None:
        """The oldest finished step, or None.

        Raises:
            BaseException: whatever the step raised; the head ends the run then.
        """
        if not self._results:
            return None
        result = self._results.popleft()
        if isinstance(result, BaseException):
            raise result
        return result

    def stop(self, timeout_seconds: float) -> bool:
        """Let queued plans finish and end the thread; False if it did not end in time."""
        self._plans.put(None)
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (plan := self._plans.get()) is not None:
            try:
                self._results.append(self._runner.run(plan))
            except BaseException as error:  # noqa: BLE001  handed to the head, which ends the run
                self._results.append(error)
            self._on_done()
