"""All links of one pipeline inside this process, by each implementation, for the same tests."""

from __future__ import annotations

import dataclasses
import threading
from concurrent.futures import ThreadPoolExecutor

import torch

from atom_lite.parallel.distributed_hidden import DistributedHiddenLink
from atom_lite.parallel.distributed_link import DistributedHeadLink, DistributedStageLink
from atom_lite.parallel.groups import Groups, open_groups, open_store
from atom_lite.parallel.link import HeadLink, HiddenLink, LinkTiming, Returned, StageLink
from atom_lite.parallel.memory_link import MemoryPipeline
from atom_lite.parallel.rendezvous import Rendezvous
from atom_lite.parallel.topology import Topology

FAST = LinkTiming(heartbeat_seconds=0.05, hang_seconds=30, close_seconds=10)


@dataclasses.dataclass
class LinkSet:
    """What the tests drive; `woken` is set by the head link's wake function."""

    topology: Topology
    head: HeadLink
    stages: dict[int, StageLink]
    hidden: dict[int, HiddenLink]
    woken: threading.Event

    def results(self, count: int) -> list[Returned]:
        results: list[Returned] = []
        while len(results) < count:
            assert self.woken.wait(30)
            self.woken.clear()
            results += self.head.poll_results()
        return results

    def close(self) -> None:
        with ThreadPoolExecutor() as pool:  # each end waits for the other's goodbye
            pool.submit(self.head.close)
            for stage in self.stages.values():
                pool.submit(stage.close)
        for hidden in self.hidden.values():
            hidden.close()


def memory_links(num_stages: int, tensor_parallel_size: int = 1, max_sends: int = 4) -> LinkSet:
    topology = Topology(num_stages=num_stages, tensor_parallel_size=tensor_parallel_size, rank=0)
    pipeline = MemoryPipeline(num_stages, tensor_parallel_size)
    woken = threading.Event()
    return LinkSet(
        topology,
        pipeline.head_link(woken.set),
        {rank: pipeline.stage_link(rank) for rank in topology.follower_ranks},
        {
            rank: pipeline.hidden_link(rank, max_sends_in_flight=max_sends)
            for rank in range(topology.world_size)
        },
        woken,
    )


def open_all_groups(topology: Topology, *, is_one_host: bool = False) -> dict[int, Groups]:
    """The groups of all ranks, which connect to each other in threads of this process."""
    ranks = [dataclasses.replace(topology, rank=rank) for rank in range(topology.world_size)]
    rendezvous = Rendezvous(startup_seconds=30, group_seconds=60, is_one_host=is_one_host)
    head_store = open_store(rendezvous, ranks[0])
    rendezvous = dataclasses.replace(rendezvous, port=head_store.port)

    def connect(rank: Topology) -> Groups:
        store = head_store if rank.is_head else open_store(rendezvous, rank)
        return open_groups(rank, store, rendezvous, data_backend="gloo")

    with ThreadPoolExecutor(len(ranks)) as pool:
        return dict(enumerate(pool.map(connect, ranks)))


def distributed_links(
    num_stages: int,
    tensor_parallel_size: int = 1,
    max_sends: int = 4,
    *,
    is_one_host: bool = False,
) -> LinkSet:
    topology = Topology(num_stages=num_stages, tensor_parallel_size=tensor_parallel_size, rank=0)
    groups = open_all_groups(topology, is_one_host=is_one_host)
    ranks = {rank: dataclasses.replace(topology, rank=rank) for rank in groups}
    woken = threading.Event()
    return LinkSet(
        topology,
        DistributedHeadLink(topology, groups[0], wake=woken.set, timing=FAST),
        {
            rank: DistributedStageLink(ranks[rank], groups[rank], timing=FAST)
            for rank in topology.follower_ranks
        },
        {
            rank: DistributedHiddenLink(
                ranks[rank],
                groups[rank],
                device=torch.device("cpu"),
                max_sends_in_flight=max_sends,
            )
            for rank in ranks
        },
        woken,
    )
