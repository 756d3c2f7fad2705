"""How the ranks find each other, and the groups that they then share.

Four groups, each with one kind of traffic in one direction:

    plans             all ranks   head -> followers
    results           all ranks   followers -> head
    incoming_hidden   2 ranks     previous stage -> this one
    outgoing_hidden   2 ranks     this stage -> next one

Stages on the CPUs of one host have `local_groups`, over Unix sockets and shared memory. All others
have torch.distributed's, over gloo; hops between accelerators are NCCL, which cannot carry CPU
tensors, so control is gloo there too. Each hop has a group of its
own: with NCCL that is one communicator for each direction and pair, used by one thread at each end.
Otherwise a transfer may be started from any thread; those to one peer are started one at a time,
and on each connection one thread waits for what comes.

torch's groups are made directly on a store and not through `init_process_group`, so they touch no
global state: closing them needs no collective (which a dead peer would block), and several ranks
can live in one process, as the contract tests do.

Measured with torch 2.13, gloo over tcp (and what follows from it):
- a pending receive or send fails at once when the peer's process ends, and only those with that
  peer: death is noticed without any timeout;
- nothing fails when the peer is stopped, until the group's timeout: hence heartbeats;
- a `wait` that times out closes the connection for good: hence no polling with short waits;
- `abort` does not end a pending receive, and only a `wait` completes a Work: hence threads that
  wait, and buffers that are released by the peer's acknowledgement;
- a second `wait` for the same gloo Work never ends; a Work that is dropped before its transfer has
  begun takes the transfer with it;
- a receive may be posted larger than what is sent; a smaller one aborts the process.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol, cast

import torch
from torch.distributed import (  # type: ignore[attr-defined]  # torch exports without __all__
    PrefixStore,
    ProcessGroupGloo,
    TCPStore,
    is_nccl_available,
)

from atom_lite.errors import ConfigError
from atom_lite.parallel import local_groups
from atom_lite.parallel.link import PipelineError

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

    from atom_lite.parallel.rendezvous import Rendezvous
    from atom_lite.parallel.topology import Topology


_POLL_SECONDS = 0.02


class Transfer(Protocol):
    """A message on its way: torch.distributed's Work, or what stands for it on one host."""

    def wait(self, timeout: timedelta = ..., /) -> bool:
        """Wait until it has arrived; once only.

        Raises:
            RuntimeError: the peer is gone, or the time is over.
        """
        ...


class TransferGroup(Protocol):
    """What the links use of a torch.distributed backend; ranks are those inside the group."""

    def send(self, tensors: list[torch.Tensor], dst_rank: int, tag: int, /) -> Transfer:
        """Start to send; the Transfer keeps the tensor."""
        ...

    def recv(self, tensors: list[torch.Tensor], src_rank: int, tag: int, /) -> Transfer:
        """Start to receive into the tensor, which is written until the Transfer has arrived."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """The groups of one rank; see the module docstring."""

    plans: TransferGroup
    results: TransferGroup
    incoming_hidden: TransferGroup | None
    outgoing_hidden: TransferGroup | None


def open_store(rendezvous: Rendezvous, topology: Topology) -> TCPStore:
    """The store that this rank meets the others on. The head's `store.port` is what others need.

    The head's store listens on `rendezvous.address` only, not on every interface: whoever reaches
    it could join the run.

    Raises:
        ConfigError: the head cannot listen there.
        PipelineError: another rank's head does not answer in time.
    """
    timeout = timedelta(seconds=rendezvous.startup_seconds)
    if topology.is_head and rendezvous.hosts_store:
        listener = _listen(rendezvous)
        return TCPStore(
            rendezvous.address,
            listener.getsockname()[1],
            is_master=True,
            timeout=timeout,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )
    try:
        return TCPStore(
            rendezvous.address,
            rendezvous.port,
            is_master=False,
            timeout=timeout,
            wait_for_workers=False,
        )
    except RuntimeError as error:
        raise PipelineError(
            f"no head at {rendezvous.address}:{rendezvous.port} "
            f"after {rendezvous.startup_seconds:g} s"
        ) from error


def data_backend(device: torch.device) -> str:
    """Which backend carries hidden states between stages on such devices.

    Raises:
        ConfigError: this build of torch has none for them.
    """
    if device.type == "cpu":
        return "gloo"
    if not is_nccl_available():
        raise ConfigError(f"torch {torch.__version__} has no NCCL, which {device} stages need")
    return "nccl"


def run_store(rendezvous: Rendezvous, store: Store) -> Store:
    """The part of the store that belongs to this run."""
    return PrefixStore(rendezvous.prefix, store)


def open_groups(
    topology: Topology,
    store: Store,
    rendezvous: Rendezvous,
    *,
    data_backend: str,
    given_up: threading.Event | None = None,
) -> Groups:
    """Wait for all ranks, then connect to them; every rank calls this.

    Args:
        topology: this rank's place.
        store: of `open_store`; not needed by gloo afterwards, but by NCCL until its first transfer.
        rendezvous: the same in all ranks; says whether they are on one host.
        data_backend: `gloo` for CPU tensors (on one host shared memory takes its place), `nccl` for
            CUDA tensors (set the device before).
        given_up: set by another thread to end the wait.

    Raises:
        PipelineError: a rank does not come up in time, or the wait was given up.
    """
    store = run_store(rendezvous, store)
    given_up = given_up or threading.Event()
    with contextlib.ExitStack() as stack:
        listener = None
        if rendezvous.is_one_host and data_backend == "gloo":
            listener = stack.enter_context(local_groups.listen(topology, store))
        _wait_for_all(topology, store, rendezvous, given_up)
        try:
            if listener is None:
                return _connect(topology, store, rendezvous, data_backend)
            local = local_groups.connect(topology, store, listener, rendezvous.group_seconds)
            return Groups(**local._asdict())
        except (RuntimeError, OSError) as error:
            raise PipelineError(
                f"{topology.describe(topology.rank)} cannot connect to the others: {error}"
            ) from error


def _connect(topology: Topology, store: Store, rendezvous: Rendezvous, data_backend: str) -> Groups:
    timeout = timedelta(seconds=rendezvous.group_seconds)
    control_device = _gloo_device(rendezvous.address)
    # a device is an I/O thread: a large tensor on its way must not hold up a plan
    data_device = _gloo_device(rendezvous.address)

    def control(name: str) -> TransferGroup:
        named_store = PrefixStore(name, store)
        return _gloo_group(named_store, topology.rank, topology.world_size, timeout, control_device)

    def hop(sender: int | None, receiver: int | None) -> TransferGroup | None:
        if sender is None or receiver is None:
            return None
        named_store = PrefixStore(f"hidden/{sender}", store)
        rank = int(topology.rank == receiver)
        if data_backend == "nccl":
            return _nccl_group(named_store, rank, 2, timeout)
        return _gloo_group(named_store, rank, 2, timeout, data_device)

    return Groups(
        plans=control("plans"),
        results=control("results"),
        # both ends connect in here: from the first stage on, so that the chain cannot lock up
        incoming_hidden=hop(topology.previous_rank, topology.rank),
        outgoing_hidden=hop(topology.rank, topology.next_rank),
    )


def resolved_address(rendezvous: Rendezvous) -> str:
    """The head's address as numbers: on many hosts their own name means 127.0.1.1."""
    address = socket.getaddrinfo(rendezvous.address, rendezvous.port, type=socket.SOCK_STREAM)
    return str(address[0][4][0])


def _listen(rendezvous: Rendezvous) -> socket.socket:
    with contextlib.ExitStack() as stack:
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                rendezvous.address, rendezvous.port, type=socket.SOCK_STREAM
            )[0]
            listener = stack.enter_context(socket.socket(family, kind, protocol))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(1024)
        except (OSError, UnicodeError) as error:  # UnicodeError: no host name at all
            reason = getattr(error, "strerror", None) or str(error)
            raise ConfigError(
                f"cannot listen on {rendezvous.address}:{rendezvous.port} for the stages: {reason}"
            ) from error
        stack.pop_all()
        return listener


def _wait_for_all(
    topology: Topology, store: Store, rendezvous: Rendezvous, given_up: threading.Event
) -> None:
    """Hold everybody until all are here: the groups' own timeout is for a run, not for a start."""
    deadline = time.monotonic() + rendezvous.startup_seconds
    missing = list(range(topology.world_size))
    try:
        store.set(f"here/{topology.rank}", "1")
        # Polled: the store's own wait would keep the connection from every other thread.
        while missing := [rank for rank in missing if not store.check([f"here/{rank}"])]:
            if time.monotonic() > deadline:
                names = ", ".join(topology.describe(rank) for rank in missing)
                raise PipelineError(
                    f"{names} did not come up within {rendezvous.startup_seconds:g} s"
                )
            if given_up.wait(_POLL_SECONDS):
                raise PipelineError("the wait for the others was given up")
    except RuntimeError as error:  # the store ends with the head's process
        raise PipelineError("the head is gone while the stages start") from error


def _gloo_device(address: str) -> ProcessGroupGloo.Device:
    """The network interface that leads to the head, or the one that the user names.

    gloo's own default asks what the host's name resolves to, which is 127.0.1.1 on many machines:
    unreachable from other hosts.
    """
    if "GLOO_SOCKET_IFNAME" in os.environ:
        return ProcessGroupGloo.create_default_device()
    return ProcessGroupGloo.create_device(hostname=_local_address_towards(address))


def _local_address_towards(address: str) -> str:
    family, kind, protocol, _, target = socket.getaddrinfo(address, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(target)  # sends nothing: it only chooses the route
        return str(probe.getsockname()[0])


def _gloo_group(
    store: Store, rank: int, size: int, timeout: timedelta, device: ProcessGroupGloo.Device
) -> TransferGroup:
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # missing in torch's stubs
    options._devices = [device]
    options._timeout = timeout
    return cast("TransferGroup", ProcessGroupGloo(store, rank, size, options))


def _nccl_group(store: Store, rank: int, size: int, timeout: timedelta) -> TransferGroup:
    # only builds of torch with CUDA have this name
    from torch.distributed import ProcessGroupNCCL

    options = ProcessGroupNCCL.Options()
    options._timeout = timeout
    return cast("TransferGroup", ProcessGroupNCCL(store, rank, size, options))
