"""The contract of EngineLink, kept by the socket and the in-memory version alike."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Protocol

import pytest
import zmq

from atom_lite.ipc.codec import decode_engine_message, encode
from atom_lite.ipc.link import EngineLink, QueueLink, SocketLink
from atom_lite.messages import (
    AbortSequence,
    EngineEvents,
    EngineMessage,
    EngineStats,
    FrontendMessage,
    SamplingParams,
    SequenceFinished,
    SequenceTimings,
    Shutdown,
    SubmitSequence,
    TokensGenerated,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SUBMIT = SubmitSequence(
    sequence_id=1,
    prompt_token_ids=[1, 2, 3],
    sampling=SamplingParams(max_tokens=4, stop_token_ids=(7,)),
    arrival_time=0.5,
    cache_salt="salt",
)
EVENTS = EngineEvents(
    events=[
        TokensGenerated(sequence_id=1, token_ids=[5], num_cached_tokens=16),
        SequenceFinished(
            sequence_id=1,
            reason="stop",
            timings=SequenceTimings(
                arrival_time=0.0, first_scheduled_time=None, first_token_time=None, finish_time=1.0
            ),
            num_prompt_tokens=3,
            num_output_tokens=1,
        ),
    ],
    stats=EngineStats(num_running=2),
    step_tokens=[3],
)


class Peer(Protocol):
    """The frontend's end, as the tests drive it."""

    link: EngineLink

    def put(self, message: FrontendMessage) -> None: ...
    def get(self) -> EngineMessage: ...
    def close(self) -> None: ...


class SocketPeer:
    def __init__(self, directory: Path) -> None:
        self._context = zmq.Context()
        self._push = self._context.socket(zmq.PUSH)
        self._pull = self._context.socket(zmq.PULL)
        addresses = [f"ipc://{directory / name}" for name in ("a", "b")]
        self._push.bind(addresses[0])
        self._pull.bind(addresses[1])
        self.lifeline_read, self.lifeline_write = os.pipe()
        self.link = SocketLink(addresses[0], addresses[1], self.lifeline_read)

    def put(self, message: FrontendMessage) -> None:
        self._push.send(encode(message))

    def get(self) -> EngineMessage:
        return decode_engine_message(self._pull.recv())

    def close(self) -> None:
        self.link.close()
        self._context.destroy(linger=0)
        os.close(self.lifeline_read)
        if self.lifeline_write >= 0:
            os.close(self.lifeline_write)


class QueuePeer:
    def __init__(self) -> None:
        self.link = QueueLink()

    def put(self, message: FrontendMessage) -> None:
        self.link.put(message)

    def get(self) -> EngineMessage:
        message = self.link.outbox.get(timeout=10)
        assert message is not None
        return message

    def close(self) -> None:
        self.link.close()


@pytest.fixture(params=["socket", "queue"])
def peer(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Peer]:
    made: Peer = SocketPeer(tmp_path) if request.param == "socket" else QueuePeer()
    yield made
    made.close()


def receive(link: EngineLink, count: int) -> list[FrontendMessage]:
    messages: list[FrontendMessage] = []
    while len(messages) < count:
        got = link.receive(10)
        assert got
        messages += got
    return messages


def test_messages_arrive_in_order_and_whole(peer: Peer) -> None:
    sent: list[FrontendMessage] = [SUBMIT, AbortSequence(sequence_id=1, reason="stop"), Shutdown()]
    for message in sent:
        peer.put(message)
    assert receive(peer.link, 3) == sent


def test_events_come_back_whole(peer: Peer) -> None:
    peer.link.send(EVENTS)
    assert peer.get() == EVENTS


def test_receive_times_out_empty(peer: Peer) -> None:
    assert peer.link.receive(0.01) == []


def test_wake_from_another_thread_ends_the_wait(peer: Peer) -> None:
    thread = threading.Timer(0.05, peer.link.wake)
    thread.start()
    start = time.monotonic()
    assert peer.link.receive(30) == []
    assert time.monotonic() - start < 10
    thread.join()


def test_many_wakes_count_as_one_and_lose_no_message(peer: Peer) -> None:
    for _ in range(100_000):
        peer.link.wake()
    peer.put(SUBMIT)
    messages: list[FrontendMessage] = []
    while not messages:
        messages += peer.link.receive(10)
    assert messages == [SUBMIT]


def test_end_of_the_lifeline_is_a_shutdown(tmp_path: Path) -> None:
    peer = SocketPeer(tmp_path)
    os.close(peer.lifeline_write)
    peer.lifeline_write = -1
    assert peer.link.receive(10) == [Shutdown()]
    peer.close()


def test_a_wrong_message_is_refused_at_the_boundary() -> None:
    with pytest.raises(Exception, match="Invalid value"):
        decode_engine_message(encode(SUBMIT))
