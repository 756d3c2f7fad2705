"""Keeps each sequence with a grammar to it: which tokens may come next, at every step.

A matcher per live sequence, keyed by (sequence, epoch). It follows the output by the stage's own
mirror: whatever the mirror has that the matcher has not seen is accepted before the next mask. So
a sequence that goes on after a preemption needs no path of its own, and a drawn token is accepted
one step later, when its row is planned again (the last one never: nobody needs it).

    forward thread   apply plan | begin ----------- layers ---------- | apply masks | draw
    loader           reads a new grammar, catches up a resumed sequence
    filler                        accepts and fills, row by row        |

What fails, fails for one sequence: a token that is refused, a grammar that does not load, a library
that raises, and masks that take too long (`grammar_filler`).

Runs on the last stage. Must not know how a token is drawn. Shapes: R sampled rows of a step, V ids.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atom_lite.worker.grammar_filler import MASK_SECONDS, Filled, MaskFiller, Work
from atom_lite.worker.grammar_loader import Follower
from atom_lite.worker.token_masks import forbid, full_masks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from atom_lite.messages import StepPlan
    from atom_lite.worker.grammar_loader import GrammarLoader
    from atom_lite.worker.grammar_matchers import GrammarError
    from atom_lite.worker.inputs import SampledRow
    from atom_lite.worker.sequence_table import SequenceTable


@dataclass(slots=True)
class _Live:
    """A live sequence with a grammar, as the forward thread knows it."""

    epoch: int
    follower: Future[Follower]
    num_seen: int  # output tokens that the follower was given


@dataclass(frozen=True, slots=True)
class StepMasks:
    """The masks of one step, being filled while the layers run."""

    finish: Callable[[], Filled]

    def apply(self, logits: Tensor) -> dict[int, GrammarError]:
        """Wait for the masks, and forbid what they forbid.

        Args:
            logits: [R, V] float32, written.

        Returns:
            Why the sequences of some rows cannot go on; what is drawn for those means nothing.
        """
        filled = self.finish()
        forbid(logits, filled.masks)
        return filled.errors


class GrammarMasks:
    """All grammars of the live sequences. Called by the forward thread.

    Args:
        vocab_size: V.
        loader: makes the followers.
        mask_seconds: most CPU time for one mask of one sequence.
    """

    def __init__(
        self, vocab_size: int, loader: GrammarLoader, *, mask_seconds: float = MASK_SECONDS
    ) -> None:
        self._vocab_size = vocab_size
        self._loader = loader
        self._live: dict[int, _Live] = {}
        self._filler = MaskFiller(mask_seconds=mask_seconds)

    def __len__(self) -> int:
        return len(self._live)

    def clear(self) -> None:
        """Forget every sequence."""
        self._live.clear()

    def follow(self, plan: StepPlan) -> None:
        """Take in the plan's new sequences and forget the dropped ones, as the mirror does."""
        for sequence_id, epoch in plan.drops:
            live = self._live.get(sequence_id)
            if live is not None and live.epoch == epoch:
                del self._live[sequence_id]
        for start in plan.starts:
            if start.grammar is not None:
                output = start.token_ids[start.num_prompt_tokens :]
                follower = self._loader.follower(start.grammar, output)
                self._live[start.sequence_id] = _Live(start.epoch, follower, len(output))

    def begin(self, sampled: Sequence[SampledRow], table: SequenceTable) -> StepMasks | None:
        """Begin to fill the masks of a step's sampled rows; None where no row has a grammar."""
        work = []
        for row, drawn in enumerate(sampled):
            live = self._live.get(drawn.sequence.sequence_id)
            if live is None:
                continue
            first = drawn.sequence.num_prompt_tokens + live.num_seen
            token_ids = table.token_ids(drawn.sequence)[first:].tolist()
            work.append(Work(row, live.follower, token_ids))
            live.num_seen = drawn.output_index
        if not work:
            return None
        rows = self._filler.begin(full_masks(len(sampled), self._vocab_size), work)
        return StepMasks(lambda: self._filler.finish(rows))
