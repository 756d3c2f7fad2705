from __future__ import annotations

import pytest

from atom_lite.kv.allocator import KVAllocator


def test_blocks_for_rounds_up() -> None:
    allocator = KVAllocator(8, 16)
    assert [allocator.blocks_for(n) for n in (0, 1, 16, 17)] == [0, 1, 1, 2]


def test_a_released_block_can_be_hit_until_it_is_evicted() -> None:
    allocator = KVAllocator(2, 4)
    [block] = allocator.take(1)
    allocator.register(block, b"a")
    allocator.release([block])
    assert allocator.find_prefix([b"a"], 1) == [block]
    assert sorted(allocator.take(2)) == [0, 1]
    assert allocator.find_prefix([b"a"], 1) == []
    allocator.check_integrity([[0, 1]])


def test_sharing_an_idle_block_uses_up_an_available_one() -> None:
    allocator = KVAllocator(2, 4)
    [block] = allocator.take(1)
    allocator.register(block, b"a")
    allocator.release([block])
    assert allocator.count_held([block]) == 0 and allocator.num_available == 2
    allocator.share([block])
    assert allocator.count_held([block]) == 1 and allocator.num_available == 1
    allocator.check_integrity([[block]])


def test_reset_forgets_idle_blocks_and_keeps_held_ones() -> None:
    allocator = KVAllocator(3, 4)
    first, second = allocator.take(2)
    allocator.register(first, b"a")
    allocator.register(second, b"b")
    allocator.release([second])
    allocator.reset_prefix_cache()
    assert allocator.find_prefix([b"a", b"b"], 2) == [first]
    allocator.check_integrity([[first]])


def test_names_of_idle_blocks_can_be_forgotten_one_by_one() -> None:
    allocator = KVAllocator(3, 4)
    blocks = allocator.take(2)
    for block_id, digest in zip(blocks, (b"a", b"b"), strict=True):
        allocator.register(block_id, digest)
    allocator.release(blocks)
    allocator.forget_idle([b"b", b"never computed"])
    assert allocator.find_prefix([b"a", b"b"], 2) == [blocks[0]]
    assert allocator.names() == {b"a"} and allocator.num_available == 3
    allocator.check_integrity([])


def test_integrity_check_sees_a_table_that_repeats_a_block() -> None:
    allocator = KVAllocator(2, 4)
    [block] = allocator.take(1)
    with pytest.raises(AssertionError, match="repeats"):
        allocator.check_integrity([[block, block]])
