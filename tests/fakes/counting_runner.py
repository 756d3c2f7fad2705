"""A PlanRunner without a model: output token i of a sequence is `first_token + i`.

Where log probabilities are asked for, it says of each token that it is the likeliest, with -1.0.
"""

from __future__ import annotations

import threading
from struct import pack
from typing import TYPE_CHECKING

from atom_lite.messages import (
    Logprobs,
    PromptScores,
    SampledToken,
    SequenceStart,
    StepPlan,
    StepResult,
    StepTimes,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from atom_lite.messages import StepRow

FIRST_TOKEN = 100


def say(token_id: int) -> Logprobs:
    return Logprobs(token_ids=pack("<i", token_id), logprobs=pack("<f", -1.0), rank=1)


def scores_of(row: StepRow, sequence: SequenceStart) -> list[PromptScores]:
    """What a row says of its prompt's tokens."""
    start = row.start + 1
    end = min(start + row.num_tokens, sequence.num_prompt_tokens)
    if sequence.sampling.num_prompt_logprobs is None or start >= end:
        return []
    positions = [say(token) for token in sequence.token_ids[start:end]]
    return [PromptScores(row.sequence_id, row.epoch, start, positions)]


class CountingRunner:
    """Keeps the contract of worker.Runner: mirrors sequences from plans, answers each plan once.

    Args:
        before_step: called with each plan on the forward thread; may block or raise.
    """

    def __init__(self, before_step: Callable[[StepPlan], None] | None = None) -> None:
        self._before_step = before_step
        self._sequences: dict[tuple[int, int], SequenceStart] = {}
        self.threads: set[int] = set()

    def run(self, plan: StepPlan) -> StepResult:
        self.threads.add(threading.get_ident())
        if self._before_step is not None:
            self._before_step(plan)
        for key in plan.drops:
            self._sequences.pop(key, None)
        for start in plan.starts:
            self._sequences[start.sequence_id, start.epoch] = start
        tokens = []
        scores: list[PromptScores] = []
        for row in plan.rows:
            sequence = self._sequences[row.sequence_id, row.epoch]
            if row.sample:
                index = row.start + row.num_tokens - sequence.num_prompt_tokens
                token_id = FIRST_TOKEN + index
                reports = sequence.sampling.num_logprobs is not None
                logprobs = say(token_id) if reports else None
                tokens.append(SampledToken(row.sequence_id, row.epoch, token_id, logprobs))
            scores += scores_of(row, sequence)
        return StepResult(
            step_id=plan.step_id,
            tokens=tokens,
            prompt_scores=scores,
            times=[StepTimes(step_id=plan.step_id, stage_seconds=[0.0])],
        )
