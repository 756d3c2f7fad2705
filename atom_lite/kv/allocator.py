"""The KV cache as the scheduler sees it: blocks to take, share, name and give back.

Why: pool and prefix cache must agree on every block (an evicted block loses its name, a released
one is kept only while it has one); this is the one place that changes both.
Runs in the engine's head process. It must not import torch, do I/O or read a clock, and it does not
decide who gets blocks: callers ask `num_available` first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from atom_lite.kv.block_pool import BlockPool
from atom_lite.kv.prefix_cache import PrefixCache

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class KVAllocator:
    """A pool of `num_blocks` blocks of `block_size` tokens, some of which have names to be hit by.

    Who names blocks, and who looks for names, is for the scheduler to say (`scheduler/sharing`).
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._pool = BlockPool(num_blocks)
        self._cache = PrefixCache()

    @property
    def num_available(self) -> int:
        """Blocks that can be taken now, cached ones that nobody holds included."""
        return self._pool.num_available

    @property
    def num_held(self) -> int:
        """Blocks in some sequence's block table; a shared block counts once."""
        return self._pool.num_held

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold the KV of `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def take(self, count: int) -> list[int]:
        """Take `count` blocks, evicting the least recently used cached ones if need be."""
        taken, evicted = self._pool.take(count)
        for block_id in evicted:
            self._cache.forget(block_id)
        return taken

    def find_prefix(self, digests: Sequence[bytes], most: int) -> list[int]:
        """The cached blocks at the start of a digest chain, at most `most`; takes none of them."""
        return self._cache.find(digests, most)

    def count_held(self, block_ids: Iterable[int]) -> int:
        """How many of these blocks are held: sharing those leaves `num_available` as it is."""
        is_held = self._pool.is_held
        return sum(1 for block_id in block_ids if is_held(block_id))

    def share(self, block_ids: Sequence[int]) -> None:
        """Become one more holder of blocks that `find_prefix` returned."""
        self._pool.share(block_ids)

    def release(self, block_ids: Sequence[int]) -> None:
        """Give back a sequence's block table; cached blocks stay hits until they are evicted."""
        self._pool.release(block_ids, keep=self._cache)

    def register(self, block_id: int, digest: bytes) -> None:
        """Let later sequences hit a held, full block."""
        self._cache.register(block_id, digest)

    def reset_prefix_cache(self) -> None:
        """Forget every cached block that nobody holds."""
        for block_id in self._pool.discard_evictable():
            self._cache.forget(block_id)

    def forget_idle(self, digests: Iterable[bytes]) -> None:
        """Forget the blocks of these names that are cached; nobody holds them."""
        for digest in digests:
            block_id = self._cache.block_of(digest)
            if block_id is not None:
                self._cache.forget(block_id)
                self._pool.discard(block_id)

    def names(self) -> set[bytes]:
        """The names of all blocks that can be hit (a copy, for checks)."""
        return self._cache.digests()

    def check_integrity(self, tables: Iterable[Sequence[int]] | None = None) -> None:
        """Raise AssertionError when pool, cache and the sequences' block tables disagree."""
        expected: dict[int, int] | None = None
        if tables is not None:
            expected = {}
            for table in tables:
                assert len(set(table)) == len(table), f"block table {table} repeats a block"
                for block_id in table:
                    expected[block_id] = expected.get(block_id, 0) + 1
        self._pool.check_integrity(expected)
        self._cache.check_integrity(self._pool.evictable_blocks())
