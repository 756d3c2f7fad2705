"""The one thread that touches torch: it loads the model and runs it.

The head never waits for its own forward pass: torch releases the GIL inside its operations, and
while they run the head delivers results, takes new requests and aborts. Plans go in and results
come out in order (first in, first out).

Loading happens on this thread too, and no other thread of the process may run torch operations.
Each thread that does becomes the master of an OpenMP team of its own, and once the teams together
have more threads than the machine has cores, GNU OpenMP stops spinning between operations and
sleeps instead: a decode step of SmolLM2-135M on two cores then takes 75 ms instead of 40.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from atom_lite.messages import StepPlan, StepResult

T = TypeVar("T")


class PlanRunner(Protocol):
    """What runs a plan: `worker.Runner`, or a fake with the same contract."""

    def run(self, plan: StepPlan) -> StepResult:
        """Run one step to its end."""
        ...


class ForwardThread:
    """Calls functions in order on a thread of its own."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._results: deque[StepResult | BaseException] = deque()
        self._thread = threading.Thread(target=self._run, name="forward", daemon=True)
        self._thread.start()

    def call(self, function: Callable[[], T]) -> T:
        """Run a function on this thread and wait for what it returns or raises."""
        outcome: Future[T] = Future()

        def job() -> None:
            try:
                outcome.set_result(function())
            except BaseException as error:  # noqa: BLE001  raised again where it is awaited
                outcome.set_exception(error)

        self._jobs.put(job)
        return outcome.result()

    def start(self, runner: PlanRunner, plan: StepPlan, on_done: Callable[[], None]) -> None:
        """Queue a plan; returns at once.

        Args:
            runner: runs it.
            plan: the step.
            on_done: called on this thread afterwards; must be cheap and safe from any thread.
        """

        def job() -> None:
            try:
                self._results.append(runner.run(plan))
            except BaseException as error:  # noqa: BLE001  handed to the head, which ends the run
                self._results.append(error)
            on_done()

        self._jobs.put(job)

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
        """Let queued work finish and end the thread; False if it did not end in time."""
        self._jobs.put(None)
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
