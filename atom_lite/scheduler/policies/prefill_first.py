"""Prefill-first: whole prompts as soon as they fit, in steps without decodes; else all decodes.

Why: the earliest first token, paid for by streams that stand still while prompts keep coming
(generation stalls of seconds). A running stream may starve as long as slots and blocks let new
prompts in. Source: vLLM V0's default scheduler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from atom_lite.scheduler.policies.admission import admit_in_order

if TYPE_CHECKING:
    from atom_lite.scheduler.step_builder import StepBuilder


class PrefillFirst:
    """A step of prompts alone wherever one can start, else a step of decodes alone."""

    def fill(self, step: StepBuilder) -> None:
        """Fill one step."""
        if step.next_admission() is not None:
            step.hold_decodes_back()
            admit_in_order(step)
        if not step.rows:
            for sequence in step.ready_decodes():
                step.place_decode(sequence)
