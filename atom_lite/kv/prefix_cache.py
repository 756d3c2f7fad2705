"""Which block holds the KV of which token prefix.

Why: equal prompt prefixes have equal keys and values, so a block that was computed once can be read
by every sequence with the same tokens up to and including it. A full block is named by a digest
chained over its parent's digest, hence a name stands for *all* tokens up to the end of the block.
Runs in the engine's head process. It must not import torch, do I/O or read a clock; it does not
know who holds a block (that is `block_pool`).

SHA-256 and not Python's `hash`: a collision would show one client another client's context, and
prompts are chosen by clients. A whole chain costs about 1 microsecond per block, once per sequence.
Source: vLLM's automatic prefix caching; the salt is its `cache_salt`.
"""

from __future__ import annotations

from array import array
from hashlib import sha256
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def root_digest(cache_salt: str | None) -> bytes:
    """The parent of a first block. Sequences with different salts share no digest at all."""
    if cache_salt is None:
        return sha256(b"prefix").digest()
    return sha256(b"salted prefix:" + cache_salt.encode("utf-8", "surrogatepass")).digest()


def group_root_digest(group: int) -> bytes:
    """The parent of a first block that only the sequences of one group share."""
    return sha256(b"group:%d" % group).digest()


def extend_digests(
    digests: list[bytes], root: bytes, token_ids: Sequence[int], block_size: int
) -> None:
    """Append to `digests` the digest of each full block of `token_ids` that it lacks."""
    first = len(digests) * block_size
    end = len(token_ids) // block_size * block_size
    if first >= end:
        return
    data = array("q", token_ids[first:end]).tobytes()
    width = len(data) // (end - first) * block_size
    parent = digests[-1] if digests else root
    for offset in range(0, len(data), width):
        parent = sha256(parent + data[offset : offset + width]).digest()
        digests.append(parent)


class PrefixCache:
    """A one-to-one map between digests and the blocks that hold their KV."""

    def __init__(self) -> None:
        self._block_of: dict[bytes, int] = {}
        self._digest_of: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._block_of)

    def __contains__(self, block_id: object) -> bool:
        return block_id in self._digest_of

    def digests(self) -> set[bytes]:
        """The names of all cached blocks (a copy, for checks)."""
        return set(self._block_of)

    def block_of(self, digest: bytes) -> int | None:
        """The block with this name, if it is cached."""
        return self._block_of.get(digest)

    def find(self, digests: Sequence[bytes], most: int) -> list[int]:
        """The blocks of the longest cached run at the start of `digests`, at most `most`."""
        found: list[int] = []
        for digest in digests[:most]:
            block_id = self._block_of.get(digest)
            if block_id is None:
                break
            found.append(block_id)
        return found

    def register(self, block_id: int, digest: bytes) -> None:
        """Name a block. Where the digest has a block already, that one stays the cached copy."""
        if digest in self._block_of:
            return
        assert block_id not in self._digest_of, f"block {block_id} already has another digest"
        self._block_of[digest] = block_id
        self._digest_of[block_id] = digest

    def forget(self, block_id: int) -> None:
        """Remove a cached block, whose content is about to be overwritten."""
        del self._block_of[self._digest_of.pop(block_id)]

    def check_integrity(self, evictable: Sequence[int]) -> None:
        """Raise AssertionError when the two maps differ or an evictable block has no name."""
        assert self._digest_of == {b: d for d, b in self._block_of.items()}, "maps differ"
        nameless = [block_id for block_id in evictable if block_id not in self._digest_of]
        assert not nameless, f"evictable blocks {nameless} are not cached"
