"""Stall-free batching: every ready decode first, prefill chunks in what is left of the budget.

Why: a running stream then waits for at most one bounded step per token, however long the prompts
are that arrive beside it. Partial prefills go before new prompts, so that few are half done.
Source: Sarathi-Serve, OSDI'24, algorithm 3.

With chunked prefill off a prompt that does not fit beside the decodes gets a step of its own. That
is the one case in which decodes are held back, for one step, and never for two in a row.

Without hybrid batching (one arm of Sarathi-Serve's ablation) steps of decodes alone and of prefill
chunks alone take turns; the chunks keep to the budget of steps with decodes, as streams wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from atom_lite.scheduler.policies.admission import admit_in_order

if TYPE_CHECKING:
    from atom_lite.scheduler.sequence import Sequence
    from atom_lite.scheduler.step_builder import StepBuilder


class StallFree:
    """Decodes, then partial prefills, then waiting prompts."""

    def __init__(self) -> None:
        self._held_decodes_back = False
        self._last_was_prefill = False

    def fill(self, step: StepBuilder) -> None:
        """Fill one step."""
        decodes = step.ready_decodes()
        if not step.hybrid:
            self._take_turns(step, decodes)
            return
        self._held_decodes_back = self._must_hold_back(step, len(decodes))
        if self._held_decodes_back:
            step.hold_decodes_back()
        else:
            for sequence in decodes:
                step.place_decode(sequence)
        self._place_prefills(step)

    def _place_prefills(self, step: StepBuilder) -> None:
        for sequence in step.partial_prefills():
            if step.budget_left <= 0:
                return
            step.place_chunk(sequence)
        admit_in_order(step)

    def _take_turns(self, step: StepBuilder, decodes: list[Sequence]) -> None:
        """Decodes or prefill chunks, whichever had no part in the last step."""
        if not decodes or not self._last_was_prefill:
            if step.whole_prompts:
                step.hold_decodes_back()
            self._place_prefills(step)
        if not step.rows:
            for sequence in decodes:
                step.place_decode(sequence)
        if step.rows:
            self._last_was_prefill = not step.flight.rows[0].is_decode

    def _must_hold_back(self, step: StepBuilder, num_decodes: int) -> bool:
        if not step.whole_prompts or num_decodes == 0 or self._held_decodes_back:
            return False
        admission = step.next_admission()
        return admission is not None and admission.num_tokens_left > step.budget_left - num_decodes
