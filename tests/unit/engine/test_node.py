from __future__ import annotations

import pytest

from atom_lite.engine.node import worst_code


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ([0, 0], 0),
        ([3, 3], 3),
        ([0, 3], 3),
        ([0, -9], 1),
        ([1, 3], 1),
        ([2, 3], 2),
        ([2, 1], 2),
    ],
)
def test_the_worst_end_of_a_stage_is_the_nodes(codes: list[int], expected: int) -> None:
    assert worst_code(codes) == expected
