"""A background that works when it is told to: every interleaving can be tested, none is raced."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Deferred:
    """See `atom_lite.chunking.background.Background`."""

    def __init__(self) -> None:
        self._jobs: deque[Callable[[], None]] = deque()

    def run(self, job: Callable[[], T], deliver: Callable[[T], None]) -> None:
        self._jobs.append(lambda: deliver(job()))

    @property
    def num_waiting(self) -> int:
        return len(self._jobs)

    def deliver(self) -> bool:
        had_any = bool(self._jobs)
        self.work()
        return had_any

    def close(self) -> None:
        self._jobs.clear()

    def work(self) -> None:
        """Run and deliver all that waits."""
        while self._jobs:
            self._jobs.popleft()()
