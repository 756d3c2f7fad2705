from __future__ import annotations

import pytest

from atom_lite.parallel.link import PipelineError
from atom_lite.parallel.returns import Returns
from atom_lite.parallel.topology import Topology


class Wakes:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


def test_the_head_is_woken_once_a_result_is_whole_and_not_for_its_parts() -> None:
    wakes = Wakes()
    returns = Returns(Topology(num_stages=4, rank=0), wakes)
    returns.put_times(1, 0, b"1")
    returns.put_times(2, 0, b"2")
    assert wakes.count == 0
    returns.put_result(0, b"x")
    assert wakes.count == 1
    assert returns.take() == [(0, b"x", [b"1", b"2"])]
    assert returns.take() == []


def test_the_last_missing_part_wakes_the_head() -> None:
    wakes = Wakes()
    returns = Returns(Topology(num_stages=3, rank=0), wakes)
    returns.put_result(4, b"x")
    assert (wakes.count, returns.take()) == (0, [])
    returns.put_times(1, 4, b"t")
    assert (wakes.count, returns.take()) == (1, [(4, b"x", [b"t"])])


def test_times_from_another_step_are_an_error() -> None:
    returns = Returns(Topology(num_stages=3, rank=0), Wakes())
    returns.put_times(1, 3, b"")
    returns.put_result(4, b"x")
    with pytest.raises(PipelineError, match="result 4 came with times of other steps"):
        returns.take()


def test_steps_come_in_order_or_not_at_all() -> None:
    returns = Returns(Topology(num_stages=3, rank=0), Wakes())
    returns.put_result(1, b"")
    returns.put_times(1, 1, b"")
    with pytest.raises(PipelineError, match="result 1 came after result 1"):
        returns.put_result(1, b"")
    with pytest.raises(PipelineError, match="step 0 came after those of step 1"):
        returns.put_times(1, 0, b"")


def test_a_step_is_where_no_times_have_come_from_yet() -> None:
    returns = Returns(Topology(num_stages=4, rank=0), Wakes())
    assert returns.stage_of(0) == 1
    returns.put_times(1, 0, b"")
    assert returns.stage_of(0) == 2
    returns.put_times(2, 0, b"")
    assert returns.stage_of(0) == 3
    assert returns.stage_of(1) == 1
