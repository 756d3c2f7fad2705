"""A step under construction: what a batching policy may do, and what keeps it safe.

Why: a policy says who goes next; budgets, blocks, preemption, prefix hits and the bookkeeping of
what the stages know are the same under every policy and live here. Pure; one builder per step, in
the head process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from atom_lite.chunking.latency_model import Chunk
from atom_lite.chunking.planner import ChunkDecision, ChunkRequest
from atom_lite.messages import SequenceStart, StepRow
from atom_lite.scheduler.in_flight import FlightRow
from atom_lite.scheduler.prompt_scores import MOST_ENTRIES_PER_STEP, score_entries
from atom_lite.scheduler.sequence import State
from atom_lite.scheduler.step_view import StepView

if TYPE_CHECKING:
    from atom_lite.scheduler.sequence import Sequence
    from atom_lite.scheduler.step_admission import Admission, Machinery


class StepBuilder(StepView):
    """Collects the rows of step `step_id`, within its token budget and the free blocks.

    What a policy may ask is inherited, what it may do is here.
    """

    def __init__(
        self,
        machinery: Machinery,
        step_id: int,
        now: float,
        decode_share: int,
        budget_tokens: int,
    ) -> None:
        super().__init__(machinery, step_id, now, decode_share, budget_tokens)
        self._block_size = machinery.limits.block_size
        self._allocator = machinery.allocator
        self._planner = machinery.planner
        self._report = machinery.report
        self.starts: list[SequenceStart] = []
        self._score_entries_left = MOST_ENTRIES_PER_STEP
        self.prefix_cache_queries = 0  # tokens
        self.prefix_cache_hits = 0
        self.num_preempted = 0
        self.is_overrun = False  # a policy knowingly misses a deadline with it
        self.is_static = False  # a policy had no latency model to size it with

    # ------------------------------------------------------------ what a policy may do

    def hold_decodes_back(self) -> None:
        """Make this a step without decodes; only for whole prompts that fit beside none."""
        assert self.whole_prompts and not self.rows
        self.budget_left = self._limits.prefill_step_tokens

    def lift_budget(self) -> None:
        """Let slots and blocks alone bound this step; for policies that know no token budget."""
        self.budget_left = self._limits.pool_tokens

    def place_decode(self, sequence: Sequence) -> bool:
        """Place a ready decode, preempting the latest sequences where blocks are short.

        Returns:
            False when it was preempted itself, or waits for the result of a later one to come back.
        """
        if sequence.state is not State.DECODING:
            return False  # preempted for an earlier row of this step
        start = sequence.num_scheduled_tokens
        new_block_ids: list[int] = []
        if start == len(sequence.block_ids) * self._block_size:
            if not self._make_room_for(sequence):
                return False
            self._roster.take_blocks(sequence, 1)
            new_block_ids = sequence.block_ids[-1:]
            sequence.num_sent_blocks += 1
        # Hundreds of rows a step pass here and the stages wait for all of them: so no more than
        # what a decode needs, positional where names cost time, and not `_place`.
        self.rows.append(
            StepRow(
                sequence_id=sequence.submission.sequence_id,
                epoch=sequence.epoch,
                start=start,
                num_tokens=1,
                sample=True,
                new_block_ids=new_block_ids,
                token_ids=sequence.tokens[-1:],
            )
        )
        self.flight.rows.append(FlightRow(sequence, sequence.epoch, 1, True, True))
        self.budget_left -= 1
        sequence.num_scheduled_tokens = start + 1
        sequence.awaits_result = True
        sequence.last_step_id = self.flight.step_id
        return True

    def place_chunk(self, sequence: Sequence, most_tokens: int | None = None) -> bool:
        """Place the next chunk of a partial prefill, as far as budget and blocks go.

        `most_tokens` is a policy's own bound.
        """
        if sequence.state is not State.PREFILLING:
            return False  # preempted for an earlier row of this step
        chunk = self._next_chunk(
            sequence, sequence.num_scheduled_tokens, sequence.num_prefill_tokens_left, most_tokens
        )
        slots = len(sequence.block_ids) + self._allocator.num_available
        fitting = slots * self._limits.block_size - sequence.num_scheduled_tokens
        num_tokens = min(chunk.tokens, fitting)
        if num_tokens <= 0:
            return False
        self._place(sequence, num_tokens)
        self._report.count(chunk._replace(tokens=num_tokens))
        return True

    def admit(self, admission: Admission, most_tokens: int | None = None) -> bool:
        """Start a waiting sequence with its first chunk, unless the planner gives it none now."""
        sequence, cached, left = admission
        prefix = len(cached) * self._limits.block_size
        chunk = self._next_chunk(sequence, prefix, left, most_tokens)
        if chunk.tokens <= 0:
            return False
        if sequence.first_scheduled_time is None:
            sequence.first_scheduled_time = self.now
            sequence.num_cached_tokens = prefix
            if self._limits.enable_prefix_caching and not sequence.reports_prompt:
                self.prefix_cache_queries += len(sequence.tokens)
                self.prefix_cache_hits += prefix
        self._roster.start(sequence, cached)
        self.starts.append(
            SequenceStart(
                sequence_id=sequence.sequence_id,
                epoch=sequence.epoch,
                token_ids=sequence.tokens.copy(),
                num_prompt_tokens=sequence.num_prompt_tokens,
                sampling=sequence.submission.sampling,
                grammar=sequence.submission.grammar,
                script=sequence.submission.script,
            )
        )
        self._place(sequence, chunk.tokens)
        self._report.count(chunk)
        return True

    # ------------------------------------------------------------ inside

    def _next_chunk(
        self,
        sequence: Sequence,
        prefix_tokens: int,
        remaining_tokens: int,
        most_tokens: int | None,
    ) -> ChunkDecision:
        """How many tokens of a prompt go into this step; 0 for none."""
        budget = self.budget_left
        if most_tokens is not None:
            budget = min(budget, most_tokens)
        if entries := score_entries(sequence):
            budget = min(budget, self._score_entries_left // entries)
        if self.whole_prompts:
            fits = remaining_tokens <= budget or not self.rows
            return ChunkDecision(remaining_tokens if fits else 0, "whole_prompt")
        if budget <= 0:
            return ChunkDecision(0, "fixed")
        request = ChunkRequest(
            sequence_id=sequence.sequence_id,
            prefix_tokens=prefix_tokens,
            remaining_tokens=remaining_tokens,
            budget_tokens=budget,
        )
        decision = self._planner.next_chunk(request)
        if most_tokens is not None and decision.tokens >= most_tokens < remaining_tokens:
            return ChunkDecision(most_tokens, "deadline")
        return decision._replace(tokens=min(decision.tokens, request.most_tokens))

    def _make_room_for(self, sequence: Sequence) -> bool:
        """See that one block is available to a decode, the latest sequence giving way first."""
        while self._allocator.num_available == 0:
            victim = self._roster.latest_preemptible(self.flight.step_id)
            assert victim is not None, "the sequence itself is preemptible"
            if victim is sequence and self._a_later_one_is_in_flight(sequence):
                return False
            self._roster.preempt(victim)
            self.num_preempted += 1
            self._planner.forget(victim.sequence_id)
            if victim is sequence:
                return False
        return True

    def _a_later_one_is_in_flight(self, sequence: Sequence) -> bool:
        """Whether a decode that should be preempted before this one still awaits its token."""
        last = self._roster.decoding[-1]
        return last.order > sequence.order and last.awaits_result

    def _place(self, sequence: Sequence, num_tokens: int) -> None:
        """A row of a prompt, or of an output that is computed again."""
        start = sequence.num_scheduled_tokens
        end = start + num_tokens
        num_new_slots = end - len(sequence.block_ids) * self._limits.block_size
        if num_new_slots > 0:
            self._roster.take_blocks(sequence, self._allocator.blocks_for(num_new_slots))
        is_last = end == len(sequence.tokens)
        self.rows.append(
            StepRow(
                sequence_id=sequence.sequence_id,
                epoch=sequence.epoch,
                start=start,
                num_tokens=num_tokens,
                sample=is_last and sequence.max_output_tokens > 0,
                new_block_ids=sequence.block_ids[sequence.num_sent_blocks :],
            )
        )
        row = FlightRow(sequence, sequence.epoch, num_tokens, is_decode=False, is_awaited=is_last)
        self.flight.rows.append(row)
        self.budget_left -= num_tokens
        self._score_entries_left -= num_tokens * score_entries(sequence)
        sequence.num_sent_blocks = len(sequence.block_ids)
        sequence.num_scheduled_tokens = end
        sequence.awaits_result = is_last
        sequence.last_step_id = self.flight.step_id
        self._chunks.append(Chunk(start, num_tokens))
        self._register_full_blocks(sequence)
        if is_last:
            self._roster.end_prefill(sequence)

    def _register_full_blocks(self, sequence: Sequence) -> None:
        """Let others hit the blocks of this chunk, from this very step on.

        Safe because each layer stores the KV of a whole step before any row of it attends.
        """
        num_full = sequence.num_scheduled_tokens // self._limits.block_size
        self._roster.register_blocks(sequence, min(num_full, len(sequence.digests)))
