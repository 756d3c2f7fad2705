"""The one terminal message of a sequence, however it ended.

Why apart: what is told at the end is read from the sequence's record and decides nothing. Pure;
runs in the head process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from atom_lite.messages import SequenceFinished, SequenceTimings

if TYPE_CHECKING:
    from atom_lite.errors import RequestError
    from atom_lite.messages import FinishReason, SubmitSequence
    from atom_lite.scheduler.sequence import Sequence
    from atom_lite.scheduler.stopping import Stop


def ending(
    sequence: Sequence,
    reason: FinishReason,
    now: float,
    *,
    stop: Stop | None = None,
    error: str | None = None,
) -> SequenceFinished:
    """The terminal event of a sequence that has lived."""
    return SequenceFinished(
        sequence_id=sequence.sequence_id,
        reason=reason,
        timings=SequenceTimings(
            arrival_time=sequence.submission.arrival_time,
            first_scheduled_time=sequence.first_scheduled_time,
            first_token_time=sequence.first_token_time,
            finish_time=now,
        ),
        num_prompt_tokens=sequence.num_prompt_tokens,
        num_output_tokens=sequence.num_output_tokens,
        num_cached_tokens=sequence.num_cached_tokens,
        num_preemptions=sequence.num_preemptions,
        stop_token_id=None if stop is None else stop.stop_token_id,
        error=error,
    )


def refusal(message: SubmitSequence, error: RequestError, now: float) -> SequenceFinished:
    """The terminal event of a sequence that never ran."""
    return SequenceFinished(
        sequence_id=message.sequence_id,
        reason="error",
        timings=SequenceTimings(
            arrival_time=message.arrival_time,
            first_scheduled_time=None,
            first_token_time=None,
            finish_time=now,
        ),
        num_prompt_tokens=len(message.prompt_token_ids),
        num_output_tokens=0,
        error=error.message,
        error_status=error.status,
    )
