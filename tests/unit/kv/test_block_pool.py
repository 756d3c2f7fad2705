from __future__ import annotations

import pytest

from atom_lite.kv.block_pool import BlockPool


def test_lowest_free_block_goes_first() -> None:
    pool = BlockPool(6)
    assert pool.take(4) == ([0, 1, 2, 3], [])
    pool.release([2, 0], keep=())
    assert pool.take(3) == ([0, 2, 4], [])


def test_cached_blocks_are_evicted_only_when_no_free_one_is_left() -> None:
    pool = BlockPool(4)
    pool.take(3)
    pool.release([0, 1], keep={0, 1})
    assert pool.num_available == 3
    assert pool.take(2) == ([3, 1], [1])


def test_the_tail_of_a_released_table_is_evicted_before_its_head() -> None:
    pool = BlockPool(3)
    pool.take(3)
    pool.release([0, 1, 2], keep={0, 1, 2})
    assert pool.take(3) == ([2, 1, 0], [2, 1, 0])


def test_a_hit_makes_a_block_the_last_to_be_evicted() -> None:
    pool = BlockPool(2)
    pool.take(2)
    pool.release([1], keep={1})
    pool.release([0], keep={0})
    pool.share([1])
    pool.release([1], keep={1})
    assert pool.evictable_blocks() == [0, 1]


def test_a_discarded_block_is_free_again_in_its_place() -> None:
    pool = BlockPool(3)
    pool.take(3)
    pool.release([0, 1, 2], keep={0, 1})
    pool.discard(0)
    assert pool.evictable_blocks() == [1] and pool.take(3) == ([0, 2, 1], [1])


def test_a_shared_block_is_free_only_after_its_last_holder() -> None:
    pool = BlockPool(1)
    pool.take(1)
    pool.share([0])
    pool.release([0], keep=())
    assert pool.is_held(0) and pool.num_held == 1
    pool.release([0], keep=())
    assert not pool.is_held(0) and pool.num_available == 1


def test_releasing_an_idle_block_is_caught() -> None:
    pool = BlockPool(2)
    with pytest.raises(AssertionError, match="block 1 is released but not held"):
        pool.release([1], keep=())


def test_integrity_check_sees_a_holder_that_no_table_explains() -> None:
    pool = BlockPool(2)
    pool.take(1)
    pool.check_integrity({0: 1})
    with pytest.raises(AssertionError, match="tables say"):
        pool.check_integrity({})


def test_integrity_check_sees_a_lost_block() -> None:
    pool = BlockPool(3)
    pool._free.pop()
    with pytest.raises(AssertionError, match="idle blocks"):
        pool.check_integrity()
