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
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from atom_lite.errors import EngineError

if TYPE_CHECKING:
    from atom_lite.messages import StepResult
    from atom_lite.scheduler.sequence import Sequence


class FlightRow(NamedTuple):
    """One sequence's share of a step in flight."""

    sequence: Sequence
    epoch: int  # of the sequence when the step was planned
    num_tokens: int
    is_decode: bool
    sample: bool


class Flight(NamedTuple):
    """A step in flight."""

    step_id: int
    rows: list[FlightRow]


class InFlight:
    """At most `depth` steps in flight, oldest first."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self._flights: deque[Flight] = deque()

    def __len__(self) -> int:
        return len(self._flights)

    @property
    def has_room(self) -> bool:
        """Whether another step may be planned before a result comes back."""
        return len(self._flights) < self.depth

    def decode_share(self, num_decoding: int) -> int:
        """Most decodes that one step may take while `num_decoding` sequences decode."""
        return -(-num_decoding // self.depth)

    def launch(self, flight: Flight) -> None:
        """Note that a plan goes out to the stages."""
        assert self.has_room
        self._flights.append(flight)

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


def tokens_that_count(flight: Flight, result: StepResult) -> list[tuple[Sequence, int]]:
    """The drawn tokens of a landed flight whose sequence still awaits them, in row order.

    A sequence that has finished since awaits nothing. One that was preempted has a new epoch, and
    what was drawn for an old one is never looked up.

    Raises:
        EngineError: a token that was to be drawn is missing.
    """
    drawn = {(token.sequence_id, token.epoch): token.token_id for token in result.tokens}
    tokens = []
    for sequence, epoch, _, _, sample in flight.rows:
        if not sample or not sequence.sample_in_flight:
            continue
        assert sequence.epoch == epoch, "a sequence was preempted with its token in flight"
        token_id = drawn.get((sequence.submission.sequence_id, epoch))
        if token_id is None:
            raise EngineError(
                f"result of step {result.step_id} lacks the token of sequence "
                f"{sequence.sequence_id}, epoch {epoch}"
            )
        tokens.append((sequence, token_id))
    return tokens
