"""What a batching policy is: the order in which work enters a step, and who is admitted.

A policy asks the `StepBuilder` for candidates and places them. It cannot break budgets or the KV
cache; the builder refuses. One instance lives as long as its scheduler, so it may remember things
between steps. Pure; runs in the head process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from atom_lite.scheduler.step_builder import StepBuilder


class BatchingPolicy(Protocol):
    """Fills one step after another."""

    def fill(self, step: StepBuilder) -> None:
        """Place the rows of one step; placing none means that nothing can run now."""
        ...
