"""The one thread that touches torch: it loads the model and runs it.

The head never waits for its own forward pass: torch releases the GIL inside its operations, and
while they run the head delivers results, takes new requests and aborts. Steps go in and results
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
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from atom_lite.messages import StepResult

T = TypeVar("T")

_CHECK_SECONDS = 0.05


class ForwardThread:
    """Calls functions in order on a thread of its own."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._results: deque[StepResult] = deque()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="forward", daemon=True)
        self._thread.start()

    def call(self, function: Callable[[], T], check: Callable[[], None] | None = None) -> T:
        """Run a function on this thread and wait for what it returns or raises.

        Args:
            function: called on this thread.
            check: called by the caller's thread now and then; what it raises ends the wait, and
                the function is left to itself.
        """
        outcome: Future[T] = Future()

        def job() -> None:
            try:
                outcome.set_result(function())
            except BaseException as error:  # noqa: BLE001  raised again where it is awaited
                outcome.set_exception(error)

        self._jobs.put(job)
        while check is not None and not wait((outcome,), _CHECK_SECONDS).done:
            check()
        return outcome.result()

    def start(self, step: Callable[[], StepResult | None], on_done: Callable[[], None]) -> None:
        """Queue a step; returns at once.

        Args:
            step: runs it; what it returns, if anything, is a result to take.
            on_done: called on this thread afterwards; must be cheap and safe from any thread.
        """

        def job() -> None:
            try:
                result = step()
                if result is not None:
                    self._results.append(result)
            except BaseException as error:  # noqa: BLE001  handed to the head, which ends the run
                self._failure = error
            on_done()

        self._jobs.put(job)

    def take_results(self) -> list[StepResult]:
        """What finished since the last call, oldest first.

        Raises:
            BaseException: whatever a step raised; the head ends the run then.
        """
        results = []
        while self._results:
            results.append(self._results.popleft())
        if self._failure is not None and not results:
            raise self._failure
        return results

    def stop(self, timeout_seconds: float) -> bool:
        """Let queued work finish and end the thread; False if it did not end in time."""
        self._jobs.put(None)
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
