"""The groups of ranks that are processes of one host: see `local_channel` for what carries them.

Each rank listens on a Unix socket of its own, without a name in the file system, and tells its
address through the store before it says that it is there. Then the higher rank of each pair
connects to the lower one. Both ends make sure that the other belongs to the same user.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from typing import TYPE_CHECKING, NamedTuple

from atom_lite.parallel.local_channel import Incoming, Outgoing

if TYPE_CHECKING:
    from datetime import timedelta

    import torch
    from torch.distributed import Store  # type: ignore[attr-defined]

    from atom_lite.parallel.topology import Topology

_CREDENTIALS = struct.Struct("3i")  # process, user, group
_MAX_NAME_BYTES = 64
# ranks inside a hop's group of two
_HOP_SENDER = 0
_HOP_RECEIVER = 1


class LocalGroup:
    """A TransferGroup; it may only send to some peers and only receive from others.

    Args:
        outgoing: by the peer's rank in this group.
        incoming: the same.
    """

    def __init__(
        self,
        outgoing: dict[int, Outgoing] | None = None,
        incoming: dict[int, Incoming] | None = None,
    ) -> None:
        self._outgoing = outgoing or {}
        self._incoming = incoming or {}

    def send(self, tensors: list[torch.Tensor], dst_rank: int, tag: int, /) -> _SentMessage:
        """See TransferGroup; the tensor may be written again at once."""
        (tensor,) = tensors
        channel = self._outgoing[dst_rank]
        return _SentMessage(channel, channel.send(tensor, tag))

    def recv(self, tensors: list[torch.Tensor], src_rank: int, tag: int, /) -> _PostedMessage:
        """See TransferGroup."""
        (tensor,) = tensors
        channel = self._incoming[src_rank]
        return _PostedMessage(channel, channel.post(), tensor, tag)


class _SentMessage(NamedTuple):
    """See Transfer; it has arrived when its receive is posted."""

    channel: Outgoing
    message: int

    def wait(self, timeout: timedelta | None = None, /) -> bool:
        """See Transfer."""
        self.channel.wait_posted(self.message, timeout)
        return True


class _PostedMessage(NamedTuple):
    """See Transfer."""

    channel: Incoming
    message: int
    tensor: torch.Tensor
    tag: int

    def wait(self, timeout: timedelta | None = None, /) -> bool:
        """See Transfer. A receive is waited for without a limit."""
        assert timeout is None
        self.channel.take(self.message, self.tensor, self.tag)
        return True


class LocalGroups(NamedTuple):
    """The groups of one rank, as in `groups.Groups`."""

    plans: LocalGroup
    results: LocalGroup
    incoming_hidden: LocalGroup | None
    outgoing_hidden: LocalGroup | None


class _Wire(NamedTuple):
    """One channel of the run."""

    kind: str
    sender: int
    receiver: int

    @property
    def name(self) -> bytes:
        """What its connection begins with."""
        return f"{self.kind} {self.sender} {self.receiver}".encode()


def listen(topology: Topology, store: Store) -> socket.socket:
    """Take connections from now on, and tell the others where."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind("")  # the kernel chooses a free abstract address, gone with the socket
    listener.listen(3 * topology.world_size)
    store.set(_address_key(topology.rank), listener.getsockname()[1:].decode())
    return listener


def connect(
    topology: Topology, store: Store, listener: socket.socket, timeout_seconds: float
) -> LocalGroups:
    """Connect to all peers of this rank; all ranks listen.

    Raises:
        OSError: one of them is gone or does not answer in time.
    """
    rank = topology.rank
    deadline = time.monotonic() + timeout_seconds
    mine = [wire for wire in _wires(topology) if rank in (wire.sender, wire.receiver)]
    called = [wire for wire in mine if rank == max(wire.sender, wire.receiver)]
    sockets = {
        wire: _call(wire, store.get(_address_key(min(wire.sender, wire.receiver))))
        for wire in called
    }
    expected = {wire.name: wire for wire in mine if wire not in sockets}
    while expected:
        listener.settimeout(max(0.0, deadline - time.monotonic()))
        connection, name = _answer(listener, deadline)
        if name in expected:
            sockets[expected.pop(name)] = connection
        else:
            connection.close()
    return _groups(topology, sockets)


def _wires(topology: Topology) -> list[_Wire]:
    head = topology.head_rank
    wires = []
    for rank in topology.follower_ranks:
        previous = topology.at(rank).previous_rank
        wires += [_Wire("plans", head, rank), _Wire("results", rank, head)]
        if previous is not None:
            wires.append(_Wire("hidden", previous, rank))
    return wires


def _groups(topology: Topology, sockets: dict[_Wire, socket.socket]) -> LocalGroups:
    rank = topology.rank
    outgoing = {wire: Outgoing(one) for wire, one in sockets.items() if wire.sender == rank}
    incoming = {wire: Incoming(one) for wire, one in sockets.items() if wire.receiver == rank}

    def control(kind: str) -> LocalGroup:
        return LocalGroup(
            {wire.receiver: one for wire, one in outgoing.items() if wire.kind == kind},
            {wire.sender: one for wire, one in incoming.items() if wire.kind == kind},
        )

    sent = [one for wire, one in outgoing.items() if wire.kind == "hidden"]
    received = [one for wire, one in incoming.items() if wire.kind == "hidden"]
    return LocalGroups(
        plans=control("plans"),
        results=control("results"),
        incoming_hidden=LocalGroup(incoming={_HOP_SENDER: received[0]}) if received else None,
        outgoing_hidden=LocalGroup(outgoing={_HOP_RECEIVER: sent[0]}) if sent else None,
    )


def _call(wire: _Wire, address: bytes) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect(b"\0" + address)
        _check_user(connection)
        connection.send(wire.name)
    except BaseException:
        connection.close()
        raise
    return connection


def _answer(listener: socket.socket, deadline: float) -> tuple[socket.socket, bytes]:
    connection, _ = listener.accept()
    try:
        _check_user(connection)
        connection.settimeout(max(0.0, deadline - time.monotonic()))
        name = connection.recv(_MAX_NAME_BYTES)
        connection.settimeout(None)
    except BaseException:
        connection.close()
        raise
    return connection, name


def _check_user(connection: socket.socket) -> None:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    user = _CREDENTIALS.unpack(credentials)[1]
    if user != os.geteuid():
        raise PermissionError(f"a process of user {user} wants to be a stage")


def _address_key(rank: int) -> str:
    return f"socket/{rank}"
