"""Which KV blocks other sequences may read, and which sequences read none.

Why: a block is shared by its name alone, a digest of all tokens up to its end (`kv/prefix_cache`).
So all rules about who may share with whom are rules about names, and they are gathered here. Pure;
runs in the head process.

    prefix cache  group  names begin with              named blocks          kept after the last
                                                                             holder has let go
    on            any    the cache salt                prompt and output     until evicted
    off           none   -                             none                  -
    off           n > 1  the group, which is unique    of the prompt         while the group lives

So with the cache off the children of one request still compute their prompt once, and no other
request can ever hit it: when the last of the group ends, its names are forgotten.

A sequence that reports log probabilities of its prompt must compute all of it, so it reads no named
block, also after a preemption. Others may read what it has computed.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from atom_lite.kv.prefix_cache import extend_digests, group_root_digest, root_digest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from atom_lite.kv.allocator import KVAllocator
    from atom_lite.messages import SubmitSequence
    from atom_lite.scheduler.sequence import Sequence


class Sharing:
    """Names blocks, and knows how many of each group are alive.

    Args:
        allocator: finds blocks by name, and forgets the names of a group that has ended.
        enable_prefix_caching: blocks are shared between requests.
    """

    def __init__(self, allocator: KVAllocator, *, enable_prefix_caching: bool) -> None:
        self._allocator = allocator
        self._enable_prefix_caching = enable_prefix_caching
        self._num_live: Counter[int] = Counter()  # by group, where those share among themselves

    def root_digest(self, message: SubmitSequence) -> bytes | None:
        """What the names of its blocks begin with; None when none of them gets a name."""
        if self._enable_prefix_caching:
            return root_digest(message.cache_salt)
        if message.group is not None:
            return group_root_digest(message.group)
        return None

    def name_blocks(self, sequence: Sequence) -> None:
        """Give each full block that others may read its digest."""
        if sequence.root_digest is not None:
            tokens = sequence.tokens
            if not self._enable_prefix_caching:
                tokens = sequence.submission.prompt_token_ids
            extend_digests(
                sequence.digests, sequence.root_digest, tokens, self._allocator.block_size
            )

    def find_cached_blocks(self, sequence: Sequence) -> list[int]:
        """Prefix hits, never the last token: its logits are needed, so it is computed again."""
        self.name_blocks(sequence)
        if sequence.reports_prompt:
            return []
        most = (len(sequence.tokens) - 1) // self._allocator.block_size
        return self._allocator.find_prefix(sequence.digests, most)

    def join(self, sequence: Sequence) -> None:
        """Count a new sequence in."""
        group = sequence.submission.group
        if group is not None and not self._enable_prefix_caching:
            self._num_live[group] += 1

    def leave(self, sequence: Sequence) -> None:
        """Count a sequence out, which holds no block any more."""
        group = sequence.submission.group
        if group is None or self._enable_prefix_caching:
            return
        self._num_live[group] -= 1
        if not self._num_live[group]:
            del self._num_live[group]
            self.name_blocks(sequence)  # it may have ended before it ever ran
            self._allocator.forget_idle(sequence.digests)

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        """Raise AssertionError when a block is shared, or has a name, against the rules."""
        live = list(sequences)
        roots: dict[int, bytes | None] = {}
        for sequence in live:
            for block_id in sequence.block_ids:
                root = roots.setdefault(block_id, sequence.root_digest)
                assert root == sequence.root_digest, f"strangers share block {block_id}"
        if self._enable_prefix_caching:
            return
        groups = [s.submission.group for s in live if s.submission.group is not None]
        assert self._num_live == Counter(groups), "groups are miscounted"
        for sequence in live:
            self.name_blocks(sequence)
        allowed = {digest for sequence in live for digest in sequence.digests}
        left = self._allocator.names() - allowed
        assert not left, f"{len(left)} blocks have the names of groups that have ended"
