from __future__ import annotations

import itertools
import sys
from typing import Any

import pytest

from atom_lite.config import ParallelConfig
from atom_lite.errors import ConfigError
from atom_lite.parallel.placement import Placement, find_placement, one_host
from atom_lite.scheduler.in_flight import MAX_STEPS_AHEAD

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "MASTER_ADDR": "head.example",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "run-7",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}


def nodes(**fields: Any) -> ParallelConfig:
    defaults = {"nnodes": 2, "master_addr": "head.example", "pipeline_parallel_size": 4}
    return ParallelConfig(**{**defaults, **fields})


def found(parallel: ParallelConfig, environ: dict[str, str] | None = None) -> Placement:
    placement = find_placement(parallel, environ or {})
    assert placement is not None
    return placement


def test_without_flags_and_torchrun_nobody_else_starts_stages() -> None:
    assert find_placement(ParallelConfig(), {}) is None
    assert find_placement(ParallelConfig(pipeline_parallel_size=4), {"RANK": "1"}) is None


def test_one_host_starts_all_followers_and_takes_a_free_port() -> None:
    placement = one_host(3, ParallelConfig())
    assert list(placement.started_ranks) == [1, 2]
    assert placement.foreign_ranks == []
    assert (placement.rendezvous.address, placement.rendezvous.port) == ("127.0.0.1", 0)
    assert placement.with_port(5).rendezvous.port == 5


def test_stages_are_divided_over_the_nodes_in_order() -> None:
    head, other = (found(nodes(node_rank=rank, master_port=4711)) for rank in (0, 1))
    assert (head.has_head, other.has_head) == (True, False)
    assert (list(head.started_ranks), head.foreign_ranks) == ([1], [2, 3])
    assert list(other.started_ranks) == [2, 3]
    assert [other.local_index(rank) for rank in (2, 3)] == [0, 1]
    assert (other.rendezvous.address, other.rendezvous.port) == ("head.example", 4711)
    assert head.rendezvous == other.rendezvous


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"pipeline_parallel_size": 3}, "--pipeline-parallel-size 3: .* evenly over --nnodes 2"),
        ({"pipeline_parallel_size": 1}, "--pipeline-parallel-size 1: .* evenly over --nnodes 2"),
        ({"pipeline_parallel_size": None}, "--nnodes 2: needs --pipeline-parallel-size"),
        ({"master_addr": None}, "--nnodes 2: needs --master-addr"),
        ({"node_rank": 2}, r"--node-rank 2: must be below --nnodes \(2\)"),
        ({"nnodes": 1, "node_rank": 1}, r"--node-rank 1: must be below --nnodes \(1\)"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        find_placement(nodes(**fields), {})


def test_under_torchrun_each_rank_is_a_stage_and_starts_no_other() -> None:
    placement = found(ParallelConfig(), TORCHRUN)
    assert (placement.num_stages, placement.rank) == (4, 3)
    assert (placement.first_local, placement.num_local) == (2, 2)
    assert placement.local_index(3) == 1
    assert not placement.started_ranks
    head = found(ParallelConfig(), {**TORCHRUN, "RANK": "0", "LOCAL_RANK": "0"})
    assert head.has_head
    assert head.foreign_ranks == [1, 2, 3]


def test_torchruns_own_store_is_used_with_keys_of_this_run_only() -> None:
    rendezvous = found(ParallelConfig(), TORCHRUN).rendezvous
    assert (rendezvous.address, rendezvous.port) == ("head.example", 29500)
    assert not rendezvous.hosts_store
    assert rendezvous.prefix == "atom_lite/run-7/2"
    alone = {**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "False"}
    assert found(ParallelConfig(), alone).rendezvous.hosts_store


def test_a_single_process_under_torchrun_is_nothing_special() -> None:
    single = {**TORCHRUN, "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    assert find_placement(ParallelConfig(), single) is None


@pytest.mark.parametrize(
    ("parallel", "environ", "told"),
    [
        (
            ParallelConfig(pipeline_parallel_size=2),
            {},
            "--pipeline-parallel-size 2: torchrun started WORLD_SIZE 4",
        ),
        (nodes(), {}, "--nnodes 2: torchrun"),
        (ParallelConfig(), {"LOCAL_RANK": "x"}, "LOCAL_RANK=x: .* must be a number"),
        (ParallelConfig(), {"LOCAL_WORLD_SIZE": ""}, "LOCAL_WORLD_SIZE=: .* must be a number"),
    ],
)
def test_flags_that_contradict_torchrun_are_refused(
    parallel: ParallelConfig, environ: dict[str, str], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        find_placement(parallel, {**TORCHRUN, **environ})


def test_no_transfer_ages_out_before_its_step_is_called_stuck() -> None:
    for limit, stages in itertools.product((0.0, 1.0, 1800.0, 7200.0), (2, 8)):
        parallel = ParallelConfig(step_timeout_seconds=limit)
        seconds = one_host(stages, parallel).rendezvous.group_seconds
        assert seconds > (stages + MAX_STEPS_AHEAD) * limit  # each before it may take so long
        assert seconds >= 1800
    for_ever = one_host(2, ParallelConfig(step_timeout_seconds=0.0))
    assert for_ever.rendezvous.group_seconds >= 86400


def test_stages_of_one_host_may_share_memory_and_those_of_several_may_not() -> None:
    assert one_host(2, ParallelConfig()).rendezvous.is_one_host == (sys.platform == "linux")
    nodes = ParallelConfig(pipeline_parallel_size=2, nnodes=2, master_addr="10.0.0.1")
    placement = find_placement(nodes, {})
    assert placement is not None
    assert not placement.rendezvous.is_one_host
