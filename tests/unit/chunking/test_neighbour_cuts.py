from __future__ import annotations

import pytest

from atom_lite.chunking.neighbour_cuts import neighbours
from atom_lite.chunking.planner import plan_limits

LIMITS = plan_limits(1024)


@pytest.mark.parametrize(
    "sizes",
    [
        [900],
        [128, 128],
        [640, 333],
        [128, 1024, 130],
        [192, 192, 256, 128, 511],
        [1024] * 9 + [200],
    ],
)
def test_neighbours_keep_the_prompt_and_the_limits(sizes: list[int]) -> None:
    found = list(neighbours(sizes, LIMITS))
    assert all(sum(changed) == sum(sizes) for changed in found)
    assert all(128 <= size <= 1024 for changed in found for size in changed)
    assert all(size % 64 == 0 for changed in found for size in changed[:-1])


def test_a_tile_moves_between_chunks_that_are_near() -> None:
    found = list(neighbours([192, 256, 256, 320, 333], LIMITS))
    assert [128, 320, 256, 320, 333] in found
    assert [256, 256, 192, 320, 333] in found
    assert [192, 256, 256, 256, 397] in found
    assert [256, 256, 256, 320, 269] not in found


def test_chunks_are_cut_in_two_and_chunks_in_a_row_cut_anew() -> None:
    found = list(neighbours([256, 256, 512], LIMITS))
    assert [256, 256, 128, 384] in found
    assert [512, 512] in found
    assert [256, 768] in found
    assert [128, 192, 192, 512] in found


def test_a_prompt_of_one_chunk_can_only_be_cut_in_two() -> None:
    assert list(neighbours([1024], LIMITS)) == [[256, 768], [512, 512], [768, 256]]
    assert list(neighbours([200], LIMITS)) == []
