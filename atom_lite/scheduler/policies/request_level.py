"""Request-level batching: a batch enters together, and nobody joins until all have finished.

Why: the baseline of the field. Slots of sequences that have ended stay empty until the longest has,
and newcomers wait for it (head-of-line blocking). Prompts go whole, and each sequence reserves the
longest one that the model allows. Source: FasterTransformer, as described in Orca, OSDI'22.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from atom_lite.scheduler.policies.admission import admit_in_order

if TYPE_CHECKING:
    from atom_lite.scheduler.step_builder import StepBuilder


class RequestLevel:
    """One batch after another."""

    def fill(self, step: StepBuilder) -> None:
        """Fill one step."""
        if step.num_running == 0:
            step.lift_budget()
            admit_in_order(step)
            return
        for sequence in step.ready_decodes():
            step.place_decode(sequence)
