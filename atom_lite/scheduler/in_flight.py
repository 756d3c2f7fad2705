"""Steps that are under way in the pipeline, and what may be planned beside them.

Why: with P stages, P microbatches must be under way or stages idle; planning the next before the
last has come back is safe only under a few rules, which are gathered here. Pure: the engine and the
simulation only move messages. Runs in the head process.

Stages run microbatches in FIFO order, and each writes KV before it reads any. From that follows
that a later step may hit blocks which an earlier one in flight registers, and may overwrite blocks
of a sequence that was dropped meanwhile. So the order of results is checked, not assumed.

    step   rows                       commit(step 7) draws tokens for A and B only:
      7    A decode, B last chunk     C was planned with epoch 0, has been preempted since
      8    C chunk (epoch 0)          (epoch 1), and whatever comes back for epoch 0 is dropped
      9    D decode, C chunk (epoch 1)

Decodes go in at most `depth` groups: one step takes at most its share of all decoding sequences,
so that decode-only load keeps every stage busy. Source: gLLM's throttle.

Acknowledgement. A step holds one of `depth` slots until it retires, and what retires it is settled
when it is planned (`StepPlan.acknowledge`), so that a switch changes no step that is under way and
scheduler, stages and simulation mean the same:

    acknowledged  the last stage's result retires it. So with every step that ends a prompt or
                  draws a token, and,
                  as at ATOM, with middle chunks while its calibration runs or a model is installed:
                  stage times are then not those of a head that has run far ahead.
    local         a step of middle chunks alone retires once stage 0 has handed it on: nobody waits
                  for what it draws. The next chunk then need not wait for a hop, a result and a
                  turn of the head's loop. With stages of equal time and a hop of a tenth of it,
                  depth P loses 6 to 10 % of a 40-chunk prompt and one step more loses nothing;
                  with free hops it neither helps nor harms (tests/unit/scheduler/test_run_ahead),
                  so what a hop costs need not be measured.

At ATOM a local step is never heard of again, and stage 0 may run ahead without bound. Here its
result comes home like any other: it carries the stages' times, and it is what bounds the run ahead.
At most one step more than `depth` is away from home, so a stage holds few receive buffers and a new
prompt queues behind one chunk more at most. Nobody runs ahead while a sequence decodes: each chunk
queued ahead of its next token would show as a gap in its stream.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from atom_lite.errors import EngineError
from atom_lite.scheduler.sequence import Sequence

if TYPE_CHECKING:
    from atom_lite.messages import RowError, SampledToken, StepResult


MAX_STEPS_AHEAD = 1


class FlightRow(msgspec.Struct, frozen=True, gc=False):
    """One sequence's share of a step in flight.

    A Struct outside the garbage collector's sight, as there are hundreds in a step: it costs a
    quarter of a NamedTuple and cannot be part of a cycle, since no sequence knows its rows.
    """

    sequence: Sequence
    epoch: int  # of the sequence when the step was planned
    num_tokens: int
    is_decode: bool
    is_awaited: bool  # draws the next token or, for a sequence that wants none, ends its prompt


class Flight(NamedTuple):
    """A step in flight."""

    step_id: int
    rows: list[FlightRow]
    acknowledge: bool = True  # only the last stage's result retires it

    @property
    def num_prefill_tokens(self) -> int:
        """Tokens of prompts, and of outputs that are computed again."""
        return sum(row.num_tokens for row in self.rows if not row.is_decode)


class InFlight:
    """The steps whose results have not come home, oldest first."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self._flights: deque[Flight] = deque()
        self._handed_on = -1  # stage 0 has handed on every step up to this one

    def __len__(self) -> int:
        return len(self._flights)

    def has_room(self, *, may_run_ahead: bool) -> bool:
        """Whether another step may be planned now.

        Args:
            may_run_ahead: no sequence decodes, so one step of middle chunks that has retired
                locally need not be home.
        """
        if len(self._flights) < self.depth:
            return True
        most = self.depth + MAX_STEPS_AHEAD
        return may_run_ahead and len(self._flights) < most and self._num_slots_held < self.depth

    @property
    def _num_slots_held(self) -> int:
        return sum(f.acknowledge or f.step_id > self._handed_on for f in self._flights)

    def decode_share(self, num_decoding: int) -> int:
        """Most decodes that one step may take while `num_decoding` sequences decode."""
        return -(-num_decoding // self.depth)

    def launch(self, flight: Flight) -> None:
        """Note that a plan goes out to the stages."""
        assert self.has_room(may_run_ahead=True)
        assert flight.acknowledge or not any(row.is_awaited for row in flight.rows)
        self._flights.append(flight)

    def hand_on(self, step_id: int) -> None:
        """Stage 0 has finished this step, and with it all before; known ones change nothing."""
        self._handed_on = max(self._handed_on, step_id)

    def land(self, result: StepResult) -> Flight:
        """Take the oldest flight off, whose result this must be.

        Raises:
            EngineError: a stage broke the FIFO order; the engine cannot go on.
        """
        expected = self._flights[0].step_id if self._flights else None
        if expected != result.step_id:
            raise EngineError(
                f"result of step {result.step_id} arrived while the oldest step in flight is "
                f"{expected}: stages must answer in order"
            )
        return self._flights.popleft()


def tokens_that_count(
    flight: Flight, result: StepResult
) -> list[tuple[Sequence, SampledToken | None]]:
    """The drawn tokens of a landed flight whose sequence still awaits them, in row order.

    None stands for the end of a prompt whose sequence wants no token.

    A sequence that has finished since awaits nothing. One that was preempted has a new epoch, and
    what was drawn for an old one is never looked up.

    Raises:
        EngineError: a token that was to be drawn is missing.
    """
    drawn = {(token.sequence_id, token.epoch): token for token in result.tokens}
    tokens = []
    for row in flight.rows:
        sequence = row.sequence
        if not row.is_awaited or not sequence.awaits_result:
            continue
        assert sequence.epoch == row.epoch, "a sequence was preempted with its token in flight"
        token = drawn.get((sequence.submission.sequence_id, row.epoch))
        if token is None and sequence.max_output_tokens > 0:
            raise EngineError(
                f"result of step {result.step_id} lacks the token of sequence "
                f"{sequence.sequence_id}, epoch {row.epoch}"
            )
        tokens.append((sequence, token))
    return tokens


def errors_that_count(flight: Flight, result: StepResult) -> list[tuple[Sequence, RowError]]:
    """The sequences of a landed flight that got an error in the place of the awaited token."""
    failed = {(error.sequence_id, error.epoch): error for error in result.errors}
    if not failed:
        return []
    return [
        (row.sequence, failed[row.sequence.sequence_id, row.epoch])
        for row in flight.rows
        if row.sequence.awaits_result and (row.sequence.sequence_id, row.epoch) in failed
    ]
