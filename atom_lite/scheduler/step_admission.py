"""Whether the earliest waiting sequence can start in the step under construction.

Why apart: it asks of the whole machinery and changes nothing, while the step builder places rows.
Pure; runs in the head process, at every step and after every admission.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from atom_lite.chunking.planner import ChunkPlanner
    from atom_lite.chunking.report import ChunkReport
    from atom_lite.kv.allocator import KVAllocator
    from atom_lite.scheduler.limits import SchedulerLimits
    from atom_lite.scheduler.roster import Roster
    from atom_lite.scheduler.sequence import Sequence
    from atom_lite.scheduler.sharing import Sharing


class Admission(NamedTuple):
    """A waiting sequence that can start now, and the cached blocks it would start from."""

    sequence: Sequence
    cached_block_ids: list[int]
    num_tokens_left: int  # to prefill


class Machinery(NamedTuple):
    """What every step of one scheduler is built with."""

    limits: SchedulerLimits
    roster: Roster
    allocator: KVAllocator
    sharing: Sharing
    planner: ChunkPlanner
    report: ChunkReport


def find_admission(machinery: Machinery) -> Admission | None:
    """The earliest waiting sequence, if it can start now.

    It can when a running slot is free, no other is just computing the block that it needs next,
    and what the capacity policy promises to it and to all that run fits in the available blocks.
    Every policy promises a whole prefill: else two half-done prompts could preempt each other for
    ever.
    """
    limits, roster, allocator = machinery.limits, machinery.roster, machinery.allocator
    sequence = roster.waiting.peek()
    if sequence is None or roster.num_running >= limits.max_num_seqs:
        return None
    cached = machinery.sharing.find_cached_blocks(sequence)
    if _waits_for_twin(machinery, sequence, len(cached)):
        return None
    # A cached block that nobody holds is taken from the available ones like any other.
    needed = roster.reach_blocks(sequence) - allocator.count_held(cached)
    promised = roster.capacity.headroom_blocks(roster) + roster.num_promised_blocks
    if needed + promised > allocator.num_available:
        return None
    left = len(sequence.tokens) - len(cached) * limits.block_size
    return Admission(sequence, cached, left)


def _waits_for_twin(machinery: Machinery, sequence: Sequence, num_cached_blocks: int) -> bool:
    """Whether a partial prefill is about to compute the very block that this one needs next."""
    if sequence.reports_prompt or num_cached_blocks >= len(sequence.digests):
        return False
    end = (num_cached_blocks + 1) * machinery.limits.block_size
    is_coming = sequence.digests[num_cached_blocks] in machinery.roster.coming_digests
    return is_coming and end < len(sequence.tokens)
