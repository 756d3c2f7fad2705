"""Plan searches and fits off the head's thread, so that no stage waits for them.

One thread, jobs in order. It is no faster than the head would be, and shares the interpreter with
it; what it buys is that a search of fifty milliseconds never stands between a result and the next
step. Outcomes are handed over on the head's thread, which alone touches planner and calibrator.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class BackgroundThread:
    """See `chunking.background.Background`.

    Args:
        wake: of the head's loop; called on this thread whenever `deliver` has news.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._jobs: queue.SimpleQueue[Callable[[], Callable[[], None]] | None] = queue.SimpleQueue()
        self._outcomes: deque[Callable[[], None]] = deque()
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="planning", daemon=True)
        self._thread.start()

    def run(self, job: Callable[[], T], deliver: Callable[[T], None]) -> None:
        """See Background."""

        def work() -> Callable[[], None]:
            outcome = job()
            return lambda: deliver(outcome)

        self._jobs.put(work)

    def deliver(self) -> bool:
        """See Background; what a job raised ends the run, as if it had run on the head's thread."""
        had_any = False
        while self._outcomes:  # may have grown since the last look
            had_any = True
            self._outcomes.popleft()()
        return had_any

    def close(self) -> None:
        """End the thread; jobs that wait are dropped, the one that runs is waited for."""
        self._is_closing.set()
        self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None and not self._is_closing.is_set():
            try:
                outcome = job()
            except BaseException as error:  # noqa: BLE001  raised again on the head's thread
                outcome = _raiser(error)
            self._outcomes.append(outcome)
            self._wake()


def _raiser(error: BaseException) -> Callable[[], None]:
    def outcome() -> None:
        raise error

    return outcome
