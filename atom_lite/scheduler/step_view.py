"""What a batching policy may ask of the step under construction. It changes nothing.

Why apart from the builder: a policy is read as questions and actions, and the questions alone say
what a policy can know. Pure; one per step, in the head process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from atom_lite.chunking.calibrator import StepSample
from atom_lite.scheduler.in_flight import Flight
from atom_lite.scheduler.step_admission import find_admission

if TYPE_CHECKING:
    from atom_lite.chunking.latency_model import Chunk
    from atom_lite.messages import StepRow
    from atom_lite.scheduler.sequence import Sequence
    from atom_lite.scheduler.step_admission import Admission, Machinery


class StepView:
    """Candidates, what has been placed so far, and what is left.

    Args:
        machinery: of the scheduler.
        step_id: of the step.
        now: when it is planned.
        decode_share: most decodes that it may take.
        budget_tokens: most tokens that it may hold.
    """

    def __init__(
        self,
        machinery: Machinery,
        step_id: int,
        now: float,
        decode_share: int,
        budget_tokens: int,
    ) -> None:
        self._machinery = machinery
        self._limits = machinery.limits
        self._roster = machinery.roster
        self._decode_share = decode_share
        self.now = now
        self.flight = Flight(step_id, [])
        self.rows: list[StepRow] = []
        self._chunks: list[Chunk] = []
        self._decodes_counted = (0, 0)  # rows, their context tokens
        self.budget_left = budget_tokens

    @property
    def whole_prompts(self) -> bool:
        """Chunked prefill is off: each prompt goes in one step."""
        return self._limits.whole_prompts

    @property
    def hybrid(self) -> bool:
        """Whether decodes and prefill chunks may share a step."""
        return self._limits.enable_hybrid_batching

    @property
    def num_running(self) -> int:
        """Sequences that hold blocks."""
        return self._roster.num_running

    @property
    def decoding(self) -> list[Sequence]:
        """All sequences that decode, in this step, in another or waiting for their turn."""
        return self._roster.decoding

    @property
    def num_prefills(self) -> int:
        """Sequences with prefill left, waiting ones included."""
        return len(self._roster.prefilling) + len(self._roster.waiting)

    @property
    def backlog_tokens(self) -> int:
        """Tokens still to prefill, of partial prefills and waiting sequences."""
        partial = sum(s.num_prefill_tokens_left for s in self._roster.prefilling)
        return partial + self._roster.waiting.num_tokens

    @property
    def num_prefill_tokens(self) -> int:
        """Tokens of prompts that have been placed."""
        return sum(chunk.new_tokens for chunk in self._chunks)

    def contents(self) -> StepSample:
        """What has been placed, in the latency model's terms; decodes come first in a step."""
        num_decodes = len(self.rows) - len(self._chunks)
        if self._decodes_counted[0] != num_decodes:
            context = sum([row.start for row in self.rows[:num_decodes]]) + num_decodes
            self._decodes_counted = (num_decodes, context)
        return StepSample(
            chunks=tuple(self._chunks),
            stage_seconds=(),
            decode_rows=num_decodes,
            decode_context_tokens=self._decodes_counted[1],
        )

    def ready_decodes(self) -> list[Sequence]:
        """Sequences whose last token has come back, in order; at most one microbatch's share."""
        ready = [s for s in self._roster.decoding if not s.awaits_result]
        return ready[: self._decode_share]

    def partial_prefills(self) -> list[Sequence]:
        """Sequences with some of their prompt still to compute, in order."""
        return list(self._roster.prefilling)

    def next_admission(self) -> Admission | None:
        """The earliest waiting sequence, if it can start in this step."""
        return find_admission(self._machinery)
