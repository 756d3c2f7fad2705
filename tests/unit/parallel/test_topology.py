from __future__ import annotations

import subprocess
import sys

import pytest

from atom_lite.errors import ConfigError
from atom_lite.parallel.topology import Topology


def rank(number: int) -> Topology:
    return Topology(num_stages=3, tensor_parallel_size=2, rank=number)


def test_ranks_of_a_stage_are_neighbours() -> None:
    assert [(rank(r).stage, rank(r).tp_rank) for r in range(6)] == [
        (0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1),
    ]  # fmt: skip
    assert rank(3).stage_ranks == (2, 3)


def test_there_is_one_head_and_one_rank_that_returns_results() -> None:
    assert [r for r in range(6) if rank(r).is_head] == [0]
    assert [r for r in range(6) if rank(r).returns_results] == [4]
    assert rank(1).result_rank == 4
    assert rank(0).follower_ranks == (1, 2, 3, 4, 5)


def test_hidden_states_go_to_the_same_tp_rank_of_the_next_stage() -> None:
    assert [rank(r).next_rank for r in range(6)] == [2, 3, 4, 5, None, None]
    assert [rank(r).previous_rank for r in range(6)] == [None, None, 0, 1, 2, 3]


def test_a_single_rank_is_everything() -> None:
    only = Topology(num_stages=1, rank=0)
    assert only.is_head
    assert only.is_first_stage
    assert only.is_last_stage
    assert only.returns_results
    assert only.follower_ranks == ()
    assert (only.previous_rank, only.next_rank) == (None, None)


def test_names_tell_the_tp_rank_only_where_there_is_one() -> None:
    assert rank(0).describe(5) == "stage 2 (TP rank 1)"
    assert Topology(num_stages=2, rank=0).describe(1) == "stage 1"


@pytest.mark.parametrize(
    ("num_stages", "tensor_parallel_size", "number", "message"),
    [
        (0, 1, 0, "pipeline parallel size 0"),
        (2, 0, 0, "tensor parallel size 0"),
        (2, 2, 4, r"rank 4 is not one of 0\.\.3"),
        (2, 1, -1, "rank -1"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(
    num_stages: int, tensor_parallel_size: int, number: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Topology(num_stages=num_stages, tensor_parallel_size=tensor_parallel_size, rank=number)


def test_what_a_launcher_needs_does_not_import_torch() -> None:
    modules = [
        f"atom_lite.parallel.{name}" for name in ("affinity", "link", "rendezvous", "topology")
    ]
    code = f"import sys, {', '.join(modules)}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
