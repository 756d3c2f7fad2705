"""Log probabilities of prompt tokens, as their prefill goes on.

The hidden state at position p says how likely each token is at p + 1. So a chunk of the prompt that
computes [start, end) scores the tokens at [start + 1, end], as far as they are the prompt's; the
scheduler puts the chunks' parts together. Logits are made for a few rows at a time: a chunk of
16384 tokens over 49152 ids would else take 3 GB.

Runs on the last stage, after the layers. It reads the mirror and changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from atom_lite.messages import Logprobs, PromptScores
from atom_lite.worker.logprobs import score_tokens

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from atom_lite.messages import StepPlan
    from atom_lite.worker.sequence_table import MirroredSequence, SequenceTable

# 25 MB of logits for 49152 ids, and a few times that while they are worked on.
ROWS_AT_ONCE = 128


class Span(NamedTuple):
    """Prompt tokens of one sequence that a step scores."""

    sequence: MirroredSequence
    first_row: int  # of the step's T hidden states, the one that predicts the first of them
    start: int  # position of the first
    end: int

    @property
    def num_likeliest(self) -> int:
        """How many tokens its client wants beside each."""
        count = self.sequence.sampling.num_prompt_logprobs
        assert count is not None
        return count


def prompt_spans(plan: StepPlan, sequences: list[MirroredSequence]) -> list[Span]:
    """What a step must score; `sequences` belong to the rows of `plan`."""
    spans = []
    first_row = 0
    for row, sequence in zip(plan.rows, sequences, strict=True):
        if sequence.sampling.num_prompt_logprobs is not None:
            start = row.start + 1
            end = min(start + row.num_tokens, sequence.num_prompt_tokens)
            if start < end:
                spans.append(Span(sequence, first_row, start, end))
        first_row += row.num_tokens
    return spans


def score_spans(
    spans: list[Span],
    table: SequenceTable,
    hidden: Tensor,
    to_logits: Callable[[Tensor], Tensor],
) -> list[PromptScores]:
    """Score the prompt tokens of a step.

    Args:
        spans: which.
        table: knows the tokens.
        hidden: [T, E] of the last layer.
        to_logits: maps hidden states [R, E] to logits [R, V] in float32.
    """
    rows: list[int] = []
    token_ids: list[int] = []
    counts: list[int] = []
    for span in spans:
        length = span.end - span.start
        rows += range(span.first_row, span.first_row + length)
        token_ids += table.tokens[span.sequence.row, span.start : span.end].tolist()
        counts += [span.num_likeliest] * length
    scores: list[Logprobs] = []
    for at in range(0, len(rows), ROWS_AT_ONCE):
        part = slice(at, at + ROWS_AT_ONCE)
        scores += score_tokens(to_logits(hidden[rows[part]]), token_ids[part], counts[part])
    results = []
    at = 0
    for span in spans:
        end = at + span.end - span.start
        sequence = span.sequence
        results.append(
            PromptScores(sequence.sequence_id, sequence.epoch, span.start, scores[at:end])
        )
        at = end
    return results
