"""Every live sequence, in the list of its state; the only place where a state changes.

Why: what must happen together (a state, its list, its blocks, the stages' mirror) happens here in
one call, so a half-done preemption cannot exist. Pure; runs in the head process. It decides
nothing: policies and the step builder do.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from typing import TYPE_CHECKING

from atom_lite.scheduler.capacity import MaxUtilization
from atom_lite.scheduler.sequence import State, by_order
from atom_lite.scheduler.waiting_queue import WaitingQueue

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atom_lite.kv.allocator import KVAllocator
    from atom_lite.scheduler.capacity import CapacityPolicy
    from atom_lite.scheduler.sequence import Sequence
    from atom_lite.scheduler.sharing import Sharing


class Roster:
    """Live sequences. `prefilling` and `decoding` are sorted by order; others only read them.

    Two sums are kept up to date, as each admission asks for them: `num_promised_blocks`, which
    running sequences are still to be sure of by the capacity policy, and `coming_digests`, the
    cacheable blocks that partial prefills have yet to compute.
    """

    def __init__(
        self, allocator: KVAllocator, sharing: Sharing, capacity: CapacityPolicy | None = None
    ) -> None:
        self._allocator = allocator
        self._sharing = sharing
        self.capacity = capacity or MaxUtilization()
        self._live: dict[int, Sequence] = {}
        self._drops: list[tuple[int, int]] = []
        self.waiting = WaitingQueue()
        self.prefilling: list[Sequence] = []
        self.decoding: list[Sequence] = []
        self.num_preemptions = 0
        self.num_promised_blocks = 0
        self.coming_digests: Counter[bytes] = Counter()

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._live.values())

    @property
    def num_running(self) -> int:
        """Sequences that hold blocks."""
        return len(self.prefilling) + len(self.decoding)

    def get(self, sequence_id: int) -> Sequence | None:
        """The live sequence with this id."""
        return self._live.get(sequence_id)

    def reach_blocks(self, sequence: Sequence) -> int:
        """Blocks that a sequence must be sure of to start; the whole pool is enough for any."""
        tokens = self.capacity.reach_tokens(sequence)
        return min(self._allocator.blocks_for(tokens), self._allocator.num_blocks)

    def add(self, sequence: Sequence) -> None:
        """Take a new sequence in; it waits."""
        self._live[sequence.sequence_id] = sequence
        self._sharing.join(sequence)
        self.waiting.push(sequence)

    def start(self, sequence: Sequence, cached_block_ids: list[int]) -> None:
        """Move the earliest waiting sequence to prefilling, holding the blocks it hit."""
        earliest = self.waiting.pop()
        assert earliest is sequence
        self._allocator.share(cached_block_ids)
        sequence.block_ids = list(cached_block_ids)
        sequence.num_sent_blocks = 0
        sequence.num_registered_blocks = len(cached_block_ids)
        sequence.num_scheduled_tokens = len(cached_block_ids) * self._allocator.block_size
        sequence.prefill_end = len(sequence.tokens)
        sequence.state = State.PREFILLING
        insort(self.prefilling, sequence, key=by_order)
        sequence.num_promised_blocks = self.reach_blocks(sequence) - len(cached_block_ids)
        self.num_promised_blocks += sequence.num_promised_blocks
        self.coming_digests.update(self._coming_digests(sequence))

    def take_blocks(self, sequence: Sequence, count: int) -> None:
        """Give a running sequence more blocks, which must be available."""
        sequence.block_ids += self._allocator.take(count)
        self._drop_promise(sequence, min(count, sequence.num_promised_blocks))

    def register_blocks(self, sequence: Sequence, num_full: int) -> None:
        """Let others hit the first `num_full` blocks of a sequence, which now has their digests."""
        for index in range(sequence.num_registered_blocks, num_full):
            digest = sequence.digests[index]
            self._allocator.register(sequence.block_ids[index], digest)
            if sequence.state is State.PREFILLING:
                self._no_longer_coming(digest)
        sequence.num_registered_blocks = num_full

    def end_prefill(self, sequence: Sequence) -> None:
        """Move a sequence whose last chunk has been placed to decoding."""
        self._leave_prefilling(sequence)
        if not self.capacity.promises_last:
            self._drop_promise(sequence, sequence.num_promised_blocks)
        self._remove_running(sequence)
        sequence.state = State.DECODING
        insort(self.decoding, sequence, key=by_order)

    def preempt(self, sequence: Sequence) -> None:
        """Take all blocks away; the sequence waits at its old place to be computed anew."""
        assert not sequence.awaits_result, "a sequence with a result in flight is not preempted"
        self._leave_stages(sequence)
        sequence.epoch += 1
        sequence.num_scheduled_tokens = 0
        sequence.state = State.WAITING
        sequence.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.push(sequence)

    def finish(self, sequence: Sequence) -> None:
        """Forget a sequence; its blocks can be reused at once."""
        del self._live[sequence.sequence_id]
        if sequence.state is State.WAITING:
            sequence.state = State.FINISHED
            self.waiting.forget(sequence)
        else:
            self._leave_stages(sequence)
            sequence.state = State.FINISHED
            sequence.awaits_result = False  # what is still being drawn no longer counts
        self._sharing.leave(sequence)

    def latest_preemptible(self, step_id: int) -> Sequence | None:
        """The last in order that may lose its blocks.

        Not one whose result is awaited, nor one with a row in step `step_id` already.
        """
        latest: Sequence | None = None
        for running in (self.prefilling, self.decoding):
            for sequence in reversed(running):
                if not sequence.awaits_result and sequence.last_step_id != step_id:
                    if latest is None or sequence.order > latest.order:
                        latest = sequence
                    break
        return latest

    def take_drops(self) -> list[tuple[int, int]]:
        """What the stages have to forget, for the next plan; each drop is returned once."""
        drops, self._drops = self._drops, []
        return drops

    def _leave_stages(self, sequence: Sequence) -> None:
        if sequence.state is State.PREFILLING:
            self._leave_prefilling(sequence)
        self._drop_promise(sequence, sequence.num_promised_blocks)
        self._remove_running(sequence)
        self._drops.append((sequence.sequence_id, sequence.epoch))
        self._allocator.release(sequence.block_ids)
        sequence.block_ids = []

    def _leave_prefilling(self, sequence: Sequence) -> None:
        for digest in self._coming_digests(sequence):
            self._no_longer_coming(digest)

    def _drop_promise(self, sequence: Sequence, num_blocks: int) -> None:
        sequence.num_promised_blocks -= num_blocks
        self.num_promised_blocks -= num_blocks

    def _coming_digests(self, sequence: Sequence) -> list[bytes]:
        """Names, where they have any, of the full blocks of its prefill not computed yet."""
        end = sequence.prefill_end // self._allocator.block_size
        return sequence.digests[sequence.num_registered_blocks : end]

    def _no_longer_coming(self, digest: bytes) -> None:
        self.coming_digests[digest] -= 1
        if not self.coming_digests[digest]:
            del self.coming_digests[digest]

    def _remove_running(self, sequence: Sequence) -> None:
        running = self.prefilling if sequence.state is State.PREFILLING else self.decoding
        index = bisect_left(running, sequence.order, key=by_order)
        assert running[index] is sequence
        del running[index]

    def check_integrity(self) -> None:
        """Raise AssertionError when lists, states and block tables disagree."""
        for state, members in (
            (State.WAITING, list(self.waiting)),
            (State.PREFILLING, self.prefilling),
            (State.DECODING, self.decoding),
        ):
            expected = {s.sequence_id for s in self if s.state is state}
            assert {s.sequence_id for s in members} == expected, f"{state} is not {expected}"
            assert len(members) == len(expected), f"{state} lists a sequence twice"
        assert len(self.waiting) == len(list(self.waiting)), "waiting count is wrong"
        waiting_tokens = sum(len(s.tokens) for s in self.waiting)
        assert self.waiting.num_tokens == waiting_tokens, "waiting tokens are miscounted"
        for running in (self.prefilling, self.decoding):
            assert running == sorted(running, key=by_order), "running list is out of order"
        for sequence in self:
            self._check_sequence(sequence)
        promised = sum(s.num_promised_blocks for s in self)
        assert self.num_promised_blocks == promised, "promised blocks are miscounted"
        coming = Counter(d for s in self.prefilling for d in self._coming_digests(s))
        assert self.coming_digests == coming, "coming blocks are miscounted"
        self._allocator.check_integrity([s.block_ids for s in self])
        self._sharing.check_integrity(self)

    def _check_sequence(self, sequence: Sequence) -> None:
        what = f"sequence {sequence.sequence_id}"
        covered = self._allocator.blocks_for(sequence.num_scheduled_tokens)
        assert len(sequence.block_ids) == covered, f"{what} holds the wrong number of blocks"
        assert sequence.num_scheduled_tokens <= len(sequence.tokens), f"{what} is ahead of itself"
        if sequence.state is State.WAITING:
            assert not sequence.awaits_result, f"{what} waits with a result in flight"
        elif sequence.state is State.PREFILLING:
            left = self.reach_blocks(sequence) - len(sequence.block_ids)
            assert sequence.num_promised_blocks == left, f"{what} is promised the wrong number"
            assert sequence.num_prefill_tokens_left > 0, f"{what} has nothing left to prefill"
            assert not sequence.awaits_result, f"{what} awaits a result before its last chunk"
        else:
            missing = len(sequence.tokens) - sequence.num_scheduled_tokens
            assert missing == (0 if sequence.awaits_result else 1), f"{what} is not ready"
