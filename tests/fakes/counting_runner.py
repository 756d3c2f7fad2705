"""A PlanRunner without a model: output token i of a sequence is `first_token + i`."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from atom_lite.messages import SampledToken, SequenceStart, StepPlan, StepResult, StepTimes

if TYPE_CHECKING:
    from collections.abc import Callable

FIRST_TOKEN = 100


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
        for row in plan.rows:
            sequence = self._sequences[row.sequence_id, row.epoch]
            if row.sample:
                index = row.start + row.num_tokens - sequence.num_prompt_tokens
                tokens.append(SampledToken(row.sequence_id, row.epoch, FIRST_TOKEN + index))
        return StepResult(
            step_id=plan.step_id,
            tokens=tokens,
            times=[StepTimes(step_id=plan.step_id, stage_seconds=[0.0])],
        )
