"""What only the links between processes can meet: silence, nonsense, buffers to release.

The peer is a bare group here, so that it can misbehave.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest
import torch

from atom_lite.errors import ConfigError
from atom_lite.parallel.distributed_link import DistributedHeadLink, DistributedStageLink
from atom_lite.parallel.link import LinkTiming, PipelineError
from atom_lite.parallel.peer_channel import PeerChannel, gloo_reason
from atom_lite.parallel.topology import Topology
from atom_lite.parallel.wire import FRAME_BYTES, FrameKind, Header, encode_frame
from tests.unit.parallel.link_sets import open_all_groups

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from atom_lite.parallel.groups import Groups

HEAD = Topology(num_stages=2, rank=0)
STAGE = Topology(num_stages=2, rank=1)
SLOW = LinkTiming(heartbeat_seconds=10, hang_seconds=60, close_seconds=0.1)
IMPATIENT = LinkTiming(heartbeat_seconds=0.05, hang_seconds=0.3, close_seconds=0.1)


@pytest.fixture(params=[False, True], ids=["gloo", "shared memory"])
def groups(request: pytest.FixtureRequest) -> Iterator[dict[int, Groups]]:
    opened = open_all_groups(HEAD, is_one_host=request.param)
    yield opened
    opened.clear()  # breaks the connections, which ends threads that still wait


class BareStage:
    """Stage 1 as a group only."""

    def __init__(self, groups: dict[int, Groups]) -> None:
        self._group = groups[1].results
        self._sent: list[object] = []

    def send_bytes(self, frame: bytes | bytearray) -> None:
        tensor = torch.frombuffer(bytearray(frame), dtype=torch.uint8)
        self._sent.append(self._group.send([tensor], 0, 0))

    def send(self, kind: FrameKind, sequence: int, step_id: int = 0) -> None:
        header = Header(kind=kind, sequence=sequence, received=0, step_id=step_id, length=0)
        self.send_bytes(encode_frame(header, b""))


def head_error(
    groups: dict[int, Groups],
    timing: LinkTiming,
    misbehave: Callable[[BareStage], None] | None = None,
) -> str:
    woken = threading.Event()
    link = DistributedHeadLink(HEAD, groups[0], wake=woken.set, timing=timing)
    stage = BareStage(groups)  # kept: gloo drops what is on its way when a Work goes
    if misbehave is not None:
        misbehave(stage)
    with pytest.raises(PipelineError) as caught:
        while True:
            assert woken.wait(20)
            woken.clear()
            link.poll_results()
    link.close()
    return str(caught.value)


def test_a_silent_stage_counts_as_hung(groups: dict[int, Groups]) -> None:
    assert head_error(groups, IMPATIENT) == "stage 1 is gone: it has stopped answering"


def test_a_silent_head_counts_as_hung(groups: dict[int, Groups]) -> None:
    link = DistributedStageLink(STAGE, groups[1], timing=IMPATIENT)
    for _ in range(2):  # it stays so
        with pytest.raises(PipelineError, match="the head is gone: it has stopped answering"):
            link.receive_plan()
    link.close()


def test_bytes_of_another_protocol_are_refused(groups: dict[int, Groups]) -> None:
    def misbehave(stage: BareStage) -> None:
        stage.send_bytes(b"GET / HTTP/1.1\r\n".ljust(100))

    assert "must run the same version" in head_error(groups, SLOW, misbehave)


def test_a_lost_message_is_noticed(groups: dict[int, Groups]) -> None:
    def misbehave(stage: BareStage) -> None:
        stage.send(FrameKind.HEARTBEAT, 0)
        stage.send(FrameKind.HEARTBEAT, 2)

    assert "message 2 came where 1 was due" in head_error(groups, SLOW, misbehave)


def test_results_out_of_order_are_noticed(groups: dict[int, Groups]) -> None:
    def misbehave(stage: BareStage) -> None:
        stage.send(FrameKind.RESULT, 0, step_id=7)
        stage.send(FrameKind.RESULT, 1, step_id=6)

    assert "result 6 came after result 7" in head_error(groups, SLOW, misbehave)


def test_a_plan_for_the_head_is_refused(groups: dict[int, Groups]) -> None:
    def misbehave(stage: BareStage) -> None:
        stage.send(FrameKind.PLAN, 0)

    assert "PLAN is not for the head" in head_error(groups, SLOW, misbehave)


def test_closing_does_not_wait_long_for_a_stage_that_does_not_answer(
    groups: dict[int, Groups],
) -> None:
    link = DistributedHeadLink(HEAD, groups[0], wake=lambda: None, timing=SLOW)
    start = time.monotonic()
    link.close()
    assert time.monotonic() - start < 5


class Recorder:
    """Stands on both ends of one connection and notes what happens."""

    def __init__(self, groups: dict[int, Groups]) -> None:
        self.lost: list[str] = []
        self.bodies: list[bytes] = []
        self.fault: Exception | None = None
        self.got = threading.Condition()
        down, up = groups[0].plans, groups[0].results
        self.near = PeerChannel(
            1, "far", outgoing=down, incoming=up, on_frame=self._note, on_lost=self.lost.append
        )
        down, up = groups[1].plans, groups[1].results
        self.far = PeerChannel(
            0, "near", outgoing=up, incoming=down, on_frame=self._note, on_lost=self.lost.append
        )

    def _note(self, header: Header, body: bytes) -> bool:
        if self.fault is not None:
            raise self.fault
        with self.got:
            self.bodies.append(body)
            self.got.notify_all()
        return header.kind is not FrameKind.SHUTDOWN

    def wait_for(self, count: int) -> None:
        with self.got:
            assert self.got.wait_for(lambda: len(self.bodies) >= count, 20)


def test_buffers_are_released_once_the_peer_has_acknowledged(groups: dict[int, Groups]) -> None:
    ends = Recorder(groups)
    ends.near.start()
    ends.far.start()
    for step_id in range(50):
        ends.near.send(FrameKind.PLAN, step_id, b"x" * (FRAME_BYTES * (step_id % 2)))
    ends.wait_for(50)
    assert ends.near.num_unacknowledged == 50
    ends.far.send(FrameKind.RESULT)
    ends.wait_for(51)
    assert ends.near.num_unacknowledged == 0
    ends.near.send(FrameKind.SHUTDOWN)
    ends.far.send(FrameKind.SHUTDOWN)
    assert ends.near.join(10)
    assert ends.far.join(10)
    assert ends.lost == []


def test_silence_is_counted_in_beats_and_any_message_ends_it(groups: dict[int, Groups]) -> None:
    ends = Recorder(groups)
    ends.near.start()
    for _ in range(2):
        ends.near.tick(3)
    ends.far.send(FrameKind.RESULT)
    ends.wait_for(1)
    for _ in range(3):
        ends.near.tick(3)
    assert not ends.near.is_lost
    ends.near.tick(3)
    assert ends.lost == ["it has stopped answering"]
    ends.near.tick(3)
    assert len(ends.lost) == 1


def test_a_receiver_that_breaks_is_a_loss_not_a_silent_end(groups: dict[int, Groups]) -> None:
    ends = Recorder(groups)
    ends.far.start()
    ends.fault = ValueError("planted")
    ends.near.send(FrameKind.PLAN)
    assert ends.far.join(10)
    assert ends.lost == ["planted"]


def test_nothing_follows_a_goodbye(groups: dict[int, Groups]) -> None:
    ends = Recorder(groups)
    ends.far.start()
    ends.near.send(FrameKind.SHUTDOWN)
    ends.near.send(FrameKind.PLAN)
    assert ends.far.join(10)
    assert len(ends.bodies) == 1
    ends.near.flush(0.5)
    assert ends.near.num_unacknowledged == 0


def test_the_hang_timeout_must_leave_room_for_a_beat() -> None:
    with pytest.raises(ConfigError, match="at most half of the hang timeout 1 s"):
        LinkTiming(heartbeat_seconds=0.6, hang_seconds=1)


def test_gloo_errors_are_told_without_source_lines_and_addresses() -> None:
    message = (
        "[/__w/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer "
        "[127.0.0.1]:57231. This is typically caused by a remote worker crashing."
    )
    assert gloo_reason(RuntimeError(message)) == "Connection closed by peer"
    assert gloo_reason(RuntimeError("")) == "RuntimeError"
