"""First come, first served: how most policies let waiting sequences in.

Pure; runs in the head process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from atom_lite.scheduler.step_builder import StepBuilder


def admit_in_order(step: StepBuilder) -> None:
    """Admit from the queue's head while the step has budget, a slot and blocks for it."""
    while step.budget_left > 0:
        admission = step.next_admission()
        if admission is None or not step.admit(admission):
            return
