import random

import pytest

from atom_lite.chunking.flow_shop import (
    bubble_seconds,
    equal_stages_seconds,
    finish_times,
    makespan_seconds,
)


def test_recursion_by_hand() -> None:
    #  stage 0  1 1 1 | 2
    #  stage 1        3 3 3 3 ...
    assert finish_times([[3.0, 1.0], [1.0, 4.0], [2.0, 2.0]]) == [
        [3.0, 4.0],
        [4.0, 8.0],
        [6.0, 10.0],
    ]


@pytest.mark.parametrize("num_stages", [1, 2, 4, 8])
def test_equal_stages_have_a_closed_form_whatever_the_order(num_stages: int) -> None:
    rng = random.Random(num_stages)
    for _ in range(50):
        times = [rng.uniform(0.1, 3.0) for _ in range(rng.randint(1, 12))]
        exact = makespan_seconds([times] * num_stages)
        assert exact == pytest.approx(equal_stages_seconds(times, num_stages))


def test_no_chunks_take_no_time() -> None:
    assert makespan_seconds([]) == 0.0
    assert makespan_seconds([[], []]) == 0.0
    assert equal_stages_seconds([], 4) == 0.0


def test_bubbles_are_what_a_stage_does_not_compute() -> None:
    assert bubble_seconds([[1.0, 1.0], [2.0, 2.0]]) == [3.0, 1.0]
