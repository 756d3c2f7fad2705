from __future__ import annotations

import pytest

from atom_lite.kv.prefix_cache import (
    PrefixCache,
    extend_digests,
    group_root_digest,
    root_digest,
)


def digests_of(tokens: list[int], block_size: int = 4, salt: str | None = None) -> list[bytes]:
    digests: list[bytes] = []
    extend_digests(digests, root_digest(salt), tokens, block_size)
    return digests


def test_only_full_blocks_have_digests() -> None:
    assert [len(digests_of([1] * n)) for n in (0, 3, 4, 7, 8)] == [0, 0, 1, 1, 2]


def test_a_chain_can_be_extended_in_pieces() -> None:
    tokens = list(range(21))
    digests: list[bytes] = []
    for end in (3, 4, 9, 21):
        extend_digests(digests, root_digest(None), tokens[:end], 4)
    assert digests == digests_of(tokens)


def test_a_digest_stands_for_all_tokens_before_it() -> None:
    first, second = digests_of([1, 2, 3, 4, 9, 9, 9, 9]), digests_of([1, 2, 3, 5, 9, 9, 9, 9])
    assert first[1] != second[1]


def test_equal_tokens_at_another_place_have_another_digest() -> None:
    first, second = digests_of([9, 9, 9, 9, 9, 9, 9, 9])
    assert first != second


def test_block_borders_cannot_be_shifted_by_large_or_negative_ids() -> None:
    chains = [digests_of(tokens, 2) for tokens in ([256, 0], [0, 1], [1, 0], [-1, 0], [2**40, 0])]
    assert len({chain[0] for chain in chains}) == len(chains)


def test_salts_isolate_and_no_salt_is_not_the_empty_salt() -> None:
    chains = [digests_of([1, 2, 3, 4], salt=salt) for salt in (None, "", "a", "b", "\ud800")]
    assert len({chain[0] for chain in chains}) == len(chains)


def test_a_group_shares_with_no_other_and_with_no_salt() -> None:
    roots = [group_root_digest(0), group_root_digest(1), root_digest(None), root_digest("group:0")]
    assert len(set(roots)) == len(roots)


def test_find_stops_at_the_first_gap_and_at_the_limit() -> None:
    cache = PrefixCache()
    digests = digests_of(list(range(16)))
    for block_id, digest in enumerate(digests):
        cache.register(block_id, digest)
    assert cache.find(digests, 4) == [0, 1, 2, 3]
    assert cache.find(digests, 2) == [0, 1]
    cache.forget(1)
    assert cache.find(digests, 4) == [0]


def test_the_first_block_of_a_digest_stays_the_cached_one() -> None:
    cache = PrefixCache()
    cache.register(3, b"x")
    cache.register(4, b"x")
    assert cache.find([b"x"], 1) == [3]
    assert 4 not in cache and len(cache) == 1


def test_integrity_check_sees_an_evictable_block_without_a_name() -> None:
    cache = PrefixCache()
    cache.register(3, b"x")
    cache.check_integrity([3])
    with pytest.raises(AssertionError, match=r"\[5\]"):
        cache.check_integrity([3, 5])
