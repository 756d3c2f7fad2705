"""Unified: no phases. Each running sequence in order takes what it lacks from one token budget.

Why: the simplest rule that chunks prompts. Decodes do not come first: one that stands behind a long
prompt in the list gets nothing while that takes the whole budget. Nobody is admitted in a step that
preempts. Source: vLLM V1's scheduler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from atom_lite.scheduler.policies.admission import admit_in_order
from atom_lite.scheduler.sequence import State, by_order

if TYPE_CHECKING:
    from atom_lite.scheduler.step_builder import StepBuilder


class Unified:
    """Running sequences in order, then waiting ones."""

    def fill(self, step: StepBuilder) -> None:
        """Fill one step."""
        running = [*step.ready_decodes(), *step.partial_prefills()]
        for sequence in sorted(running, key=by_order):
            if step.budget_left <= 0:
                break
            if sequence.state is State.DECODING:
                step.place_decode(sequence)
            else:
                step.place_chunk(sequence)
        if step.num_preempted == 0:
            admit_in_order(step)
        _put_decodes_first(step)


def _put_decodes_first(step: StepBuilder) -> None:
    """Bring the rows into the order of every plan; who got how much stays."""
    is_decode = [row.is_decode for row in step.flight.rows]
    if sorted(is_decode, reverse=True) == is_decode:
        return
    order = sorted(range(len(is_decode)), key=lambda index: not is_decode[index])
    step.rows[:] = [step.rows[index] for index in order]
    step.flight.rows[:] = [step.flight.rows[index] for index in order]
