from __future__ import annotations

import dataclasses
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.distributed import PrefixStore, is_nccl_available

from atom_lite.errors import ConfigError
from atom_lite.parallel.groups import data_backend, open_groups, open_store
from atom_lite.parallel.joining import join_groups
from atom_lite.parallel.link import PipelineError
from atom_lite.parallel.rendezvous import Rendezvous
from atom_lite.parallel.topology import Topology
from tests.unit.parallel.link_sets import open_all_groups

HEAD = Topology(num_stages=2, rank=0)
STAGE = Topology(num_stages=2, rank=1)


def test_the_head_takes_a_free_port_on_the_named_address_only() -> None:
    store = open_store(Rendezvous(), HEAD)
    with socket.create_connection(("127.0.0.1", store.port), timeout=5):
        pass
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.2", store.port), timeout=5)


def test_a_port_in_use_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"cannot listen on 127\.0\.0\.1:{port}"):
            open_store(Rendezvous(port=port), HEAD)


def test_an_address_that_is_not_here_is_named() -> None:
    with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1"):
        open_store(Rendezvous(address="192.0.2.1"), HEAD)


def test_a_head_that_does_not_answer_is_told() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # refuses connections: it does not listen
        rendezvous = Rendezvous(port=bound.getsockname()[1], startup_seconds=0.2)
        with pytest.raises(PipelineError, match="no head at"):
            open_store(rendezvous, STAGE)


def test_a_rank_that_does_not_come_up_is_named() -> None:
    rendezvous = Rendezvous(startup_seconds=0.2)
    store = open_store(rendezvous, HEAD)
    with pytest.raises(PipelineError, match=r"stage 1 did not come up within 0\.2 s"):
        open_groups(HEAD, store, rendezvous, data_backend="gloo")


@pytest.mark.parametrize("is_one_host", [False, True])
def test_a_rank_that_dies_while_connecting_is_told(is_one_host: bool) -> None:
    rendezvous = Rendezvous(group_seconds=0.5, is_one_host=is_one_host)
    store = open_store(rendezvous, HEAD)
    store.set(f"{rendezvous.prefix}/here/1", "1")  # it came up, and then was seen no more
    with pytest.raises(PipelineError, match="stage 0 cannot connect to the others"):
        open_groups(HEAD, store, rendezvous, data_backend="gloo")


@pytest.mark.parametrize("is_one_host", [False, True])
def test_each_rank_gets_the_hops_that_it_has(is_one_host: bool) -> None:
    groups = open_all_groups(Topology(num_stages=3, rank=0), is_one_host=is_one_host)
    assert [
        (groups[rank].incoming_hidden is not None, groups[rank].outgoing_hidden is not None)
        for rank in range(3)
    ] == [(False, True), (True, True), (True, False)]


def test_the_prefix_keeps_an_earlier_run_out_of_the_store() -> None:
    rendezvous = Rendezvous(startup_seconds=0.2, prefix="run 2")
    store = open_store(rendezvous, HEAD)
    store.set("run 1/here/1", "1")
    with pytest.raises(PipelineError, match="stage 1 did not come up"):
        open_groups(HEAD, store, rendezvous, data_backend="gloo")


def test_a_rank_may_be_given_a_store_that_another_program_holds() -> None:
    rendezvous = Rendezvous()
    agent = open_store(rendezvous, HEAD)
    rendezvous = dataclasses.replace(rendezvous, port=agent.port, hosts_store=False)
    store = open_store(rendezvous, HEAD)
    store.set("key", "value")
    assert agent.get("key") == b"value"


def test_hidden_states_of_cpus_go_over_gloo() -> None:
    assert data_backend(torch.device("cpu")) == "gloo"


def test_hidden_states_of_accelerators_need_nccl() -> None:
    accelerator = torch.device("cuda", 0)
    if is_nccl_available():
        assert data_backend(accelerator) == "nccl"
    else:
        with pytest.raises(ConfigError, match="no NCCL, which cuda:0 stages need"):
            data_backend(accelerator)


def test_a_wait_for_the_others_ends_with_what_its_check_raises() -> None:
    rendezvous = Rendezvous(startup_seconds=30)
    store = open_store(rendezvous, HEAD)

    def check() -> None:
        raise PipelineError("the process of stage 1 ended with exit code 1")

    with pytest.raises(PipelineError, match="exit code 1"):
        join_groups(HEAD, store, rendezvous, data_backend="gloo", check=check)


def test_all_missing_ranks_are_named() -> None:
    rendezvous = Rendezvous(startup_seconds=0.1)
    head = Topology(num_stages=3, rank=0)
    with pytest.raises(PipelineError, match=r"stage 1, stage 2 did not come up within 0\.1 s"):
        join_groups(head, open_store(rendezvous, head), rendezvous, data_backend="gloo")


def test_a_stranger_that_connects_is_turned_away() -> None:
    rendezvous = Rendezvous(is_one_host=True, group_seconds=30)
    head_store = open_store(rendezvous, HEAD)
    # A client each, as in processes of their own: one that waits for a key lets no other call in.
    shared = dataclasses.replace(rendezvous, port=head_store.port)
    stage_store = open_store(shared, STAGE)
    store = PrefixStore(rendezvous.prefix, open_store(shared, STAGE))
    with ThreadPoolExecutor(2) as pool:
        head = pool.submit(open_groups, HEAD, head_store, rendezvous, data_backend="gloo")
        address = b"\0" + store.get("socket/0")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
            stranger.connect(address)
            stranger.send(b"hidden 0 7")
            stage = pool.submit(open_groups, STAGE, stage_store, shared, data_backend="gloo")
            assert stage.result(30).plans is not None
            assert head.result(30).plans is not None
            assert stranger.recv(1) == b""
