"""Who holds each KV block, and which free block is given out next.

Why: the KV cache is one array of equal blocks; all that a sequence owns on the device is a list of
block numbers. This module does that bookkeeping and nothing else: it knows no tokens, no hashes.
Runs in the engine's head process. It must not import torch, do I/O or read a clock.

Each block is in exactly one of three places:

    free       nobody holds it, its content is worthless      heap, lowest number first
    evictable  nobody holds it, its content may be hit again   queue, least recently used first
    held       one or more sequences hold it                   counted

The lowest free block goes first so that the resident memory of a lazily touched array follows use.
Evictable blocks are taken only when no free one is left.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence


class BlockPool:
    """Counts holders of blocks 0 .. num_blocks - 1."""

    def __init__(self, num_blocks: int) -> None:
        assert num_blocks >= 1
        self.num_blocks = num_blocks
        self._holders = [0] * num_blocks
        self._free = list(range(num_blocks))  # ascending, hence already a heap
        # Not a dict: popping its oldest entry rescans the holes that earlier pops have left.
        self._evictable: OrderedDict[int, None] = OrderedDict()

    @property
    def num_available(self) -> int:
        """Blocks that `take` could give out: free and evictable ones."""
        return len(self._free) + len(self._evictable)

    @property
    def num_held(self) -> int:
        """Blocks that at least one sequence holds."""
        return self.num_blocks - self.num_available

    def is_held(self, block_id: int) -> bool:
        """Whether some sequence holds the block."""
        return self._holders[block_id] > 0

    def take(self, count: int) -> tuple[list[int], list[int]]:
        """Give `count` blocks their first holder.

        Returns:
            The blocks, and those among them that were evictable: their old content is lost now.
        """
        assert 0 <= count <= self.num_available, (count, self.num_available)
        taken = [heapq.heappop(self._free) for _ in range(min(count, len(self._free)))]
        evicted = [self._evictable.popitem(last=False)[0] for _ in range(count - len(taken))]
        taken += evicted
        for block_id in taken:
            self._holders[block_id] = 1
        return taken, evicted

    def share(self, block_ids: Iterable[int]) -> None:
        """Add one holder to blocks that are held or evictable."""
        for block_id in block_ids:
            if self._holders[block_id] == 0:
                del self._evictable[block_id]
            self._holders[block_id] += 1

    def release(self, block_ids: Sequence[int], keep: Container[int]) -> None:
        """Remove one holder from each block; those in `keep` have content that may be hit again.

        The later a block is in `block_ids`, the sooner it is evicted: the head of a prefix is of
        use to more prompts than its tail, and a tail without its head is of use to none.
        """
        for block_id in reversed(block_ids):
            assert self._holders[block_id] > 0, f"block {block_id} is released but not held"
            self._holders[block_id] -= 1
            if self._holders[block_id] > 0:
                continue
            if block_id in keep:
                self._evictable[block_id] = None
            else:
                heapq.heappush(self._free, block_id)

    def discard_evictable(self) -> list[int]:
        """Turn every evictable block into a free one and return them."""
        discarded = list(self._evictable)
        self._evictable.clear()
        for block_id in discarded:
            heapq.heappush(self._free, block_id)
        return discarded

    def discard(self, block_id: int) -> None:
        """Turn an evictable block into a free one."""
        del self._evictable[block_id]
        heapq.heappush(self._free, block_id)

    def evictable_blocks(self) -> list[int]:
        """Evictable blocks, the next to be evicted first (a copy, for checks)."""
        return list(self._evictable)

    def check_integrity(self, expected_holders: dict[int, int] | None = None) -> None:
        """Raise AssertionError when a block is lost, doubly listed or wrongly counted.

        Args:
            expected_holders: holders per held block, counted from the sequences' block tables.
        """
        assert all(count >= 0 for count in self._holders), "negative holder count"
        listed = sorted([*self._free, *self._evictable])
        idle = [b for b, count in enumerate(self._holders) if count == 0]
        assert listed == idle, f"idle blocks {idle} but listed {listed}"
        if expected_holders is not None:
            held = {b: count for b, count in enumerate(self._holders) if count > 0}
            assert held == expected_holders, f"held {held} but tables say {expected_holders}"
