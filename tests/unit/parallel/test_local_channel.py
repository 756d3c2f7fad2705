"""What only the channels inside one host can meet: segments, full sockets, a peer that went."""

from __future__ import annotations

import socket
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch

from atom_lite.parallel.local_channel import (
    INLINE_BYTES,
    KEPT_SEGMENT_BYTES,
    Incoming,
    Outgoing,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="stages share memory on Linux")

LARGE = 10 * INLINE_BYTES
AT_ONCE = timedelta(0)


class Channel:
    """Both ends, in this process."""

    def __init__(self) -> None:
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.outgoing = Outgoing(near)
        self.incoming = Incoming(far)

    def pass_on(self, tensor: torch.Tensor, tag: int = 0) -> None:
        """Send, receive, compare."""
        self.outgoing.send(tensor, tag)
        room = torch.empty_like(tensor)
        self.incoming.take(self.incoming.post(), room, tag)
        assert torch.equal(room, tensor)


def numbered(num_bytes: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, (num_bytes,), dtype=torch.uint8, generator=generator)


def num_mapped_segments() -> int:
    """Segments that this process has mapped; each end has a mapping of its own."""
    return Path("/proc/self/maps").read_text().count("memfd:atom_lite")


@pytest.mark.parametrize(
    "num_bytes", [0, 1, INLINE_BYTES, INLINE_BYTES + 1, LARGE, KEPT_SEGMENT_BYTES + 1]
)
def test_bytes_arrive_whatever_their_number(num_bytes: int) -> None:
    channel = Channel()
    for seed in range(2):
        channel.pass_on(numbered(num_bytes, seed))


def test_a_segment_is_used_again_once_its_message_was_taken() -> None:
    before = num_mapped_segments()
    channel = Channel()
    for seed in range(20):
        channel.pass_on(numbered(LARGE - seed, seed))
    # the second was sent before the sender could know that the first was taken
    assert num_mapped_segments() - before <= 2 * 2


def test_messages_on_their_way_do_not_share_a_segment() -> None:
    channel = Channel()
    sent = [numbered(LARGE, seed) for seed in range(5)]
    for tensor in sent:
        channel.outgoing.send(tensor, 0)
    for tensor in sent:
        room = torch.empty_like(tensor)
        channel.incoming.take(channel.incoming.post(), room, 0)
        assert torch.equal(room, tensor)


def test_very_large_segments_are_not_kept_and_a_channel_that_ends_keeps_none() -> None:
    before = num_mapped_segments()
    channel = Channel()
    channel.pass_on(numbered(KEPT_SEGMENT_BYTES + 1))
    assert num_mapped_segments() == before
    channel.pass_on(numbered(LARGE))
    assert num_mapped_segments() == before + 2
    del channel
    assert num_mapped_segments() == before


def test_what_was_sent_before_the_sender_went_can_still_be_taken() -> None:
    channel = Channel()
    channel.incoming.post()  # a note that it never reads
    sent = [numbered(10), numbered(LARGE)]
    for tensor in sent:
        channel.outgoing.send(tensor, 0)
    channel.incoming.post()  # another one
    del channel.outgoing
    for message, tensor in enumerate(sent):
        room = torch.empty_like(tensor)
        channel.incoming.take(message, room, 0)
        assert torch.equal(room, tensor)
    message = channel.incoming.post()
    with pytest.raises(RuntimeError, match="Connection closed by peer"):
        channel.incoming.take(message, torch.empty(10), 0)


def test_a_receiver_that_went_is_told_where_its_answer_is_awaited() -> None:
    channel = Channel()
    channel.outgoing.send(numbered(10), 0)
    del channel.incoming
    message = channel.outgoing.send(numbered(10), 0)
    with pytest.raises(RuntimeError, match="Connection closed by peer"):
        channel.outgoing.wait_posted(message, None)


def test_a_message_counts_as_arrived_when_its_receive_is_posted() -> None:
    channel = Channel()
    message = channel.outgoing.send(numbered(LARGE), 0)
    with pytest.raises(RuntimeError, match="timed out"):
        channel.outgoing.wait_posted(message, AT_ONCE)
    channel.incoming.post()
    channel.outgoing.wait_posted(message, AT_ONCE)


@pytest.mark.parametrize(("num_bytes", "tag"), [(11, 1), (10, 2), (LARGE, 1)])
def test_a_message_that_is_not_the_one_that_is_due_is_refused(num_bytes: int, tag: int) -> None:
    channel = Channel()
    channel.outgoing.send(numbered(num_bytes), tag)
    message = channel.incoming.post()
    with pytest.raises(RuntimeError, match=f"with tag {tag} came where 10 with tag 1 fit"):
        channel.incoming.take(message, torch.empty(10, dtype=torch.uint8), 1)


def test_a_receiver_that_does_not_read_for_hundreds_of_messages_is_told_and_never_waited_for() -> (
    None
):
    channel = Channel()
    sent = 0
    with pytest.raises(RuntimeError, match="stopped reading"):
        for _ in range(100_000):
            channel.outgoing.send(numbered(10), 0)
            sent += 1
    assert sent >= 100
