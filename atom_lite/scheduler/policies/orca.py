"""Orca: in each iteration all running sequences, and waiting ones with their whole prompts.

Why: iteration-level scheduling lets requests join and leave at any step, but a long prompt makes
the one step that it is in as long as itself, and every stream in it waits. There is no token
budget: slots and a reservation of the longest sequence for each bound a step. Linear layers run
over the flattened tokens and attention per sequence (selective batching), as everywhere here.
Source: Orca, OSDI'22, algorithm 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from atom_lite.scheduler.policies.admission import admit_in_order

if TYPE_CHECKING:
    from atom_lite.scheduler.step_builder import StepBuilder


class Orca:
    """Decodes, then whole prompts first come, first served."""

    def fill(self, step: StepBuilder) -> None:
        """Fill one step."""
        for sequence in step.ready_decodes():
            step.place_decode(sequence)
        step.lift_budget()
        admit_in_order(step)
