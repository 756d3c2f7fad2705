from __future__ import annotations

import dataclasses
import socket

import pytest

from atom_lite.errors import ConfigError
from atom_lite.parallel.groups import open_groups, open_store
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


def test_a_rank_that_dies_while_connecting_is_told() -> None:
    rendezvous = Rendezvous(group_seconds=0.5)
    store = open_store(rendezvous, HEAD)
    store.set(f"{rendezvous.prefix}/here/1", "1")  # it came up, and then was seen no more
    with pytest.raises(PipelineError, match="stage 0 cannot connect to the others"):
        open_groups(HEAD, store, rendezvous, data_backend="gloo")


def test_each_rank_gets_the_hops_that_it_has() -> None:
    groups = open_all_groups(Topology(num_stages=3, rank=0))
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
