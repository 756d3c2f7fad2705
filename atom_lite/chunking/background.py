"""Where plan searches and fits run: milliseconds that the head's thread must not spend.

A job is a pure function of values that nobody changes any more; what it returns is handed back on
the thread that owns planner and calibrator, between two of its turns. So neither needs a lock. The
engine brings a thread (`engine/background_thread.py`); tests and simulations run jobs at once, and
stay deterministic. Pure; head process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Background(Protocol):
    """Runs jobs in the order given."""

    def run(self, job: Callable[[], T], deliver: Callable[[T], None]) -> None:
        """Have a job run soon.

        Args:
            job: may run on any thread, so it reads only what is its own or never changes.
            deliver: takes what the job returned, on the caller's thread.
        """
        ...

    def deliver(self) -> bool:
        """Hand over what has been found; on the caller's thread. Whether there was anything.

        Raises:
            Exception: what a job raised.
        """
        ...

    def close(self) -> None:
        """Run no further jobs."""
        ...


class Inline:
    """Runs a job at once, on the thread that asks for it."""

    def run(self, job: Callable[[], T], deliver: Callable[[T], None]) -> None:
        """See Background."""
        deliver(job())

    def deliver(self) -> bool:
        """All has been handed over."""
        return False

    def close(self) -> None:
        """Nothing waits."""
