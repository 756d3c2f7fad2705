"""Policy slo: decodes first, then as many prompt tokens as keep the tightest decode deadline.

Why: no fixed budget fits every load. Beside few streams a step has room for a long chunk, beside
many or long ones for a short one; the latency model says how much. Over P stages a stream waits for
P microbatches per token, so each gets a P-th of its time, and never more than those under way leave
of it. Chunks end where a KV block does. While work comes in faster than it is done, the margin that
is kept to the objective shrinks; the objective itself is never passed knowingly.

Prompts are served by when they should be done, the earliest first: a multiple of the time that each
takes alone after its arrival, or its TTFT objective where that is less. So short prompts go before
long ones that have time left, and one that has waited long goes before all newer ones: nobody
starves. One that is late takes half of a step, so that it does not hold back those behind it.
Priorities go before all of this.

When decodes alone are over the time, one small chunk still goes every fourth step; such steps are
counted as overruns. Runs in the head process.
Sources: Sarathi-Serve, OSDI'24; Medha (deadlines relative to length); slack carried as in Etalon.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from atom_lite.chunking.latency_model import Chunk
from atom_lite.chunking.planner import DEFAULT_ALIGN_TOKENS

if TYPE_CHECKING:
    from collections.abc import Sequence as List

    from atom_lite.chunking.latency_model import LatencyModel
    from atom_lite.scheduler.forecast import Forecast
    from atom_lite.scheduler.limits import SchedulerLimits
    from atom_lite.scheduler.sequence import Sequence
    from atom_lite.scheduler.step_builder import StepBuilder

MOST_STEPS_WITHOUT_PREFILL = 3
STRETCH = 4.0  # a prompt should be done after this many times of what it takes alone
# Of the time that a deadline leaves: what is used without and with arrival pressure.
CALM_SHARE = 0.85
PRESSED_SHARE = 0.95
_PRESSURE_STEPS = 16  # over which the work that waits is compared


class _Target(NamedTuple):
    """What a step keeps to: seconds on the slowest stage, as these models tell; None: none do."""

    seconds: float
    models: List[LatencyModel] | None


class Slo:
    """Decodes, then prompts by due time within the time of the tightest deadline."""

    def __init__(self, limits: SchedulerLimits, forecast: Forecast) -> None:
        self._limits = limits
        self._forecast = forecast
        self._num_steps_without_prefill = 0
        self._backlogs: deque[int] = deque(maxlen=_PRESSURE_STEPS)
        self._pressure = 0.0  # 0..1

    def prefill_due(self, sequence: Sequence, num_tokens_left: int) -> float:
        """When a prompt that has just come should be done."""
        alone = self._forecast.prefill_seconds(num_tokens_left)
        allowance = STRETCH * alone
        ttft = sequence.deadline.objectives.ttft_seconds
        if ttft is not None:
            allowance = min(allowance, max(ttft, alone))  # what cannot be kept is no claim
        return sequence.submission.arrival_time + allowance

    def fill(self, step: StepBuilder) -> None:
        """Fill one step."""
        self._watch_arrivals(step.backlog_tokens)
        room = self._room(step)
        for sequence in step.ready_decodes():
            step.place_decode(sequence)
        self._place_prefills(step, room)
        if step.num_prefill_tokens or not _has_prefill(step):
            self._num_steps_without_prefill = 0
        elif step.rows:
            self._num_steps_without_prefill += 1
        is_stuck = not step.rows and self._forecast.is_idle
        if is_stuck or self._num_steps_without_prefill > MOST_STEPS_WITHOUT_PREFILL:
            self._place_least(step)

    # ------------------------------------------------------------ how much

    def _room(self, step: StepBuilder) -> float:
        """Seconds that this step may take on the slowest stage; infinite where no stream waits.

        Never more than an objective, whatever slack there is: it pays for waiting, not for a step
        that would be felt as a stall.
        """
        earliest = tightest = math.inf
        for sequence in step.decoding:
            deadline = sequence.deadline
            tbt = deadline.objectives.tbt_seconds
            if tbt is None:
                continue
            if not sequence.awaits_result:
                earliest = min(earliest, deadline.due_seconds)
                tightest = min(tightest, tbt)
            elif sequence.has_more_to_decode:
                # The token under way comes first; the next one then has the whole objective.
                tightest = min(tightest, tbt)
        left = min(earliest - step.now, tightest)
        left *= CALM_SHARE + (PRESSED_SHARE - CALM_SHARE) * self._pressure
        return min(left / self._limits.pipeline_depth, left - self._forecast.seconds_in_flight)

    def _watch_arrivals(self, backlog_tokens: int) -> None:
        """Pressure rises while more prompt tokens wait than some steps ago, else it falls."""
        grows = bool(self._backlogs) and backlog_tokens > self._backlogs[0]
        change = 1.0 / _PRESSURE_STEPS if grows else -1.0 / _PRESSURE_STEPS
        self._pressure = min(1.0, max(0.0, self._pressure + change))
        self._backlogs.append(backlog_tokens)

    def _most_tokens(
        self, step: StepBuilder, target: _Target, sequence: Sequence, prefix: int, left: int
    ) -> int:
        """How many of a prompt's tokens go into the step: all that are left or the budget allows.

        Else as many as there is time for, up to a block's end; a late prompt leaves half of them
        to others.
        """
        tokens = self._timely_tokens(step, target, prefix)
        block = self._limits.block_size
        is_late = step.now > sequence.prefill_due
        if is_late and tokens >= 2 * block and step.num_prefills > 1:
            tokens /= 2
        if tokens >= min(left, step.budget_left):
            return left
        return max(0, (prefix + int(tokens)) // block * block - prefix)

    def _timely_tokens(self, step: StepBuilder, target: _Target, prefix: int) -> float:
        """New tokens behind this prefix that the step still has time for."""
        if math.isinf(target.seconds):
            return step.budget_left
        if target.models is None:
            step.is_static = True
            safe = self._forecast.costs.prefill_tokens(target.seconds)
            if safe is None:
                safe = self._limits.least_chunk_tokens
            return safe - step.num_prefill_tokens
        contents = step.contents()
        with_chunk = (*contents.chunks, Chunk(prefix, 0))  # what a chunk costs of any size
        most = math.inf
        for model in target.models:
            taken = model.predict(
                with_chunk,
                decode_rows=contents.decode_rows,
                decode_context_tokens=contents.decode_context_tokens,
            )
            room = target.seconds / self._forecast.factor - taken
            most = min(most, model.tokens_within(prefix, room))
        return most

    # ------------------------------------------------------------ who

    def _place_prefills(self, step: StepBuilder, seconds: float) -> None:
        """Earliest due first, until time, budget or candidates are used up."""
        models = None if math.isinf(seconds) else self._forecast.models()
        target = _Target(seconds, models)
        partial = deque(sorted(step.partial_prefills(), key=_turn))
        admission = step.next_admission()
        while step.budget_left > 0 and (partial or admission is not None):
            if admission is None or (partial and partial[0].turn < admission.sequence.turn):
                first = partial.popleft()
                start, left = first.num_scheduled_tokens, first.num_prefill_tokens_left
                most = self._most_tokens(step, target, first, start, left)
                if most <= 0:
                    return
                step.place_chunk(first, most)
                continue
            first, cached, left = admission
            start = len(cached) * self._limits.block_size
            most = self._most_tokens(step, target, first, start, left)
            if most <= 0:
                return
            is_admitted = step.admit(admission, most)
            admission = step.next_admission() if is_admitted else None

    def _place_least(self, step: StepBuilder) -> None:
        """One small chunk of the first prompt in turn, whatever the time."""
        least = max(self._limits.block_size, DEFAULT_ALIGN_TOKENS)
        before = step.num_prefill_tokens
        first = min(step.partial_prefills(), key=_turn, default=None)
        admission = step.next_admission()
        if admission is not None and (first is None or admission.sequence.turn < first.turn):
            step.admit(admission, least)
        elif first is not None:
            step.place_chunk(first, least)
        if step.num_prefill_tokens > before:
            self._num_steps_without_prefill = 0
            step.is_overrun = True


def _turn(sequence: Sequence) -> tuple[int, float, int]:
    return sequence.turn


def _has_prefill(step: StepBuilder) -> bool:
    return bool(step.partial_prefills()) or step.next_admission() is not None
