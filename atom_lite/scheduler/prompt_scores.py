"""Log probabilities of prompt tokens, put together from what each chunk brings.

Why: clients get the positions of a prompt once each and in order, but chunks may come back for a
sequence that was preempted meanwhile (an old epoch: dropped) and are computed again after that (a
repeat of what has been delivered: cut off). Pure; runs in the head process, at every commit.

    epoch 0   chunk 0..7 -> positions 1..8 delivered     chunk 8..15 in flight when preempted
    epoch 1   chunk 0..11 -> 1..8 cut off, 9..12 delivered
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from atom_lite.errors import EngineError
from atom_lite.messages import PromptLogprobs

if TYPE_CHECKING:
    from atom_lite.messages import PromptScores, StepResult
    from atom_lite.scheduler.in_flight import Flight, FlightRow
    from atom_lite.scheduler.sequence import Sequence

# Most log probabilities of prompts in one step, 8 bytes each: a result must stay a message that
# stages and frontend can take, also where whole vocabularies are asked for.
MOST_ENTRIES_PER_STEP = 1 << 22


def score_entries(sequence: Sequence) -> int:
    """Log probabilities that each prompt token of a sequence adds to a result."""
    count = sequence.submission.sampling.num_prompt_logprobs
    return 0 if count is None else 1 + count


def prompt_scores_that_count(flight: Flight, result: StepResult) -> list[PromptLogprobs]:
    """What a landed flight adds to the prompts' log probabilities, in row order.

    Raises:
        EngineError: positions are missing; the engine cannot go on.
    """
    came = {(scores.sequence_id, scores.epoch): scores for scores in result.prompt_scores}
    events = []
    for row in flight.rows:
        sequence = row.sequence
        if row.is_decode:
            continue  # its prompt is done
        if not sequence.reports_prompt or sequence.epoch != row.epoch or not sequence.is_running:
            continue
        scores = came.get((sequence.sequence_id, row.epoch))
        if scores is not None and (event := _news(row, scores)) is not None:
            events.append(event)
        if row.is_awaited and sequence.next_scored_position < sequence.num_prompt_tokens:
            raise _gap(row, sequence.num_prompt_tokens)
    return events


def _news(row: FlightRow, scores: PromptScores) -> PromptLogprobs | None:
    """The positions that have not been delivered before."""
    sequence = row.sequence
    start = sequence.next_scored_position
    if scores.start > start:
        raise _gap(row, scores.start)
    positions = scores.positions[start - scores.start :]
    if not positions:
        return None
    sequence.next_scored_position += len(positions)
    return PromptLogprobs(sequence_id=sequence.sequence_id, start=start, positions=positions)


def _gap(row: FlightRow, end: int) -> EngineError:
    sequence = row.sequence
    return EngineError(
        f"log probabilities of prompt positions {sequence.next_scored_position} to {end - 1} of "
        f"sequence {sequence.sequence_id}, epoch {row.epoch}, are missing"
    )
