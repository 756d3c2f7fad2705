"""HeadLink and StageLink over torch.distributed: between processes, on one host or many.

The head has a `PeerChannel` to each follower. Plans go out on the caller's thread (starting a
transfer takes microseconds and never waits for the peer); results are collected by the channels'
threads, which wake the head's loop. A follower's channel puts plans in a queue.

How a run ends:

    head closes            SHUTDOWN down; each follower's `receive_plan` gives None; it answers with
                           SHUTDOWN; then nothing is pending at either end
    a follower raises      FAILURE up (`report_failure`), then it ends
    a process dies         the connection breaks at once, at both of its neighbours and at the head
    a process hangs        no heartbeat for `hang_seconds`
    the head dies, hangs   each follower's `receive_plan` raises

A process that got a PipelineError may have threads that wait inside gloo for good (nothing can end
that wait but the peer); it leaves by `os._exit`.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from atom_lite.parallel.link import LinkTiming, PipelineError, Returned
from atom_lite.parallel.peer_channel import PeerChannel, Pulse
from atom_lite.parallel.returns import Returns
from atom_lite.parallel.wire import FrameKind, Header

if TYPE_CHECKING:
    from collections.abc import Callable

    from atom_lite.parallel.groups import Groups
    from atom_lite.parallel.topology import Topology

# The cause comes first; after it, every rank reports that its neighbour is gone.
_MAX_FAILURES_TOLD = 4


class DistributedHeadLink:
    """See HeadLink. Made in the head's process once its groups are open.

    Args:
        topology: the head's.
        groups: kept until `close`.
        wake: called on other threads whenever `poll_results` has news.
        timing: equal in all ranks.
    """

    def __init__(
        self,
        topology: Topology,
        groups: Groups,
        *,
        wake: Callable[[], None],
        timing: LinkTiming,
    ) -> None:
        assert topology.is_head
        self._wake = wake
        self._close_seconds = timing.close_seconds
        self._returns = Returns(topology, wake)
        self._failures: deque[str] = deque()
        self._last_plan = -1
        self._closing = False
        self._channels = [
            PeerChannel(
                rank,
                topology.describe(rank),
                outgoing=groups.plans,
                incoming=groups.results,
                on_frame=partial(self._take_frame, topology.at(rank)),
                on_lost=partial(self._take_loss, topology.describe(rank)),
            )
            for rank in topology.follower_ranks
        ]
        for channel in self._channels:
            channel.start()
        self._pulse = Pulse(self._channels, timing)

    def send_plan(self, step_id: int, body: bytes) -> None:
        """See HeadLink."""
        assert step_id > self._last_plan, f"plan {step_id} after {self._last_plan}"
        self._last_plan = step_id
        for channel in self._channels:
            channel.send(FrameKind.PLAN, step_id, body)

    def poll_results(self) -> list[Returned]:
        """See HeadLink."""
        results = self._returns.take()
        if not self._failures:
            return results
        if not results:
            raise PipelineError("; ".join(list(self._failures)[:_MAX_FAILURES_TOLD]))
        self._wake()  # so that the caller comes back for the failure
        return results

    def stage_of(self, step_id: int) -> int:
        """See HeadLink."""
        return self._returns.stage_of(step_id)

    def close(self) -> None:
        """See HeadLink."""
        if self._closing:
            return
        self._closing = True
        self._pulse.stop()
        for channel in self._channels:
            channel.send(FrameKind.SHUTDOWN)
        deadline = time.monotonic() + self._close_seconds
        for channel in self._channels:
            if not channel.is_lost:
                channel.join(deadline - time.monotonic())

    def _take_frame(self, peer: Topology, header: Header, body: bytes) -> bool:
        """A follower's message (called by its channel's thread)."""
        match header.kind:
            case FrameKind.RESULT if peer.returns_results:
                self._returns.put_result(header.step_id, body)
                return True
            case FrameKind.TIMES if peer.reports_times:
                self._returns.put_times(peer.stage, header.step_id, body)
                return True
            case FrameKind.FAILURE:
                self._fail(f"{peer.name} failed: {body.decode(errors='replace')}")
                return True
            case FrameKind.SHUTDOWN:
                if not self._closing:
                    self._fail(f"{peer.name} left")
                return False
            case _:
                raise PipelineError(f"{header.kind.name} is not for the head")

    def _take_loss(self, name: str, reason: str) -> None:
        """A follower is gone (called by its channel's thread or the pulse)."""
        if not self._closing:
            self._fail(f"{name} is gone: {reason}")

    def _fail(self, message: str) -> None:
        self._failures.append(message)
        self._wake()


class DistributedStageLink:
    """See StageLink. Made in a follower's process once its groups are open."""

    def __init__(self, topology: Topology, groups: Groups, *, timing: LinkTiming) -> None:
        assert not topology.is_head
        self._returns_results = topology.returns_results
        self._reports_times = topology.reports_times
        self._close_seconds = timing.close_seconds
        self._plans: queue.SimpleQueue[tuple[int, bytes] | PipelineError | None] = (
            queue.SimpleQueue()
        )
        self._last_plan = self._last_returned = -1
        self._ended: PipelineError | None = None
        self._has_ended = False
        self._close_lock = threading.Lock()
        self._closed = False
        self._head = PeerChannel(
            topology.head_rank,
            "the head",
            outgoing=groups.results,
            incoming=groups.plans,
            on_frame=self._take_frame,
            on_lost=self._take_loss,
        )
        self._head.start()
        self._pulse = Pulse([self._head], timing)

    def receive_plan(self) -> tuple[int, bytes] | None:
        """See StageLink."""
        item = None if self._has_ended else self._plans.get()
        if isinstance(item, tuple):
            return item
        if not self._has_ended:
            self._has_ended, self._ended = True, item
        if self._ended is not None:
            raise self._ended
        return None

    def send_result(self, step_id: int, body: bytes) -> None:
        """See StageLink."""
        assert self._returns_results, "only the last stage returns results"
        self._return(FrameKind.RESULT, step_id, body)

    def send_times(self, step_id: int, body: bytes) -> None:
        """See StageLink."""
        assert self._reports_times, "only the stages between report their times"
        self._return(FrameKind.TIMES, step_id, body)

    def report_failure(self, message: str) -> None:
        """See StageLink."""
        self._head.send(FrameKind.FAILURE, body=message.encode())
        self._head.flush(self._close_seconds)

    def close(self) -> None:
        """See StageLink."""
        with self._close_lock:
            if self._closed:
                return
            self._closed = True
        self._pulse.stop()
        self._head.send(FrameKind.SHUTDOWN)
        self._head.flush(self._close_seconds)
        self._plans.put(None)

    def _return(self, kind: FrameKind, step_id: int, body: bytes) -> None:
        assert step_id > self._last_returned, f"step {step_id} after {self._last_returned}"
        self._last_returned = step_id
        self._head.send(kind, step_id, body)

    def _take_frame(self, header: Header, body: bytes) -> bool:
        """The head's message (called by the channel's thread)."""
        match header.kind:
            case FrameKind.PLAN:
                if header.step_id <= self._last_plan:
                    raise PipelineError(f"plan {header.step_id} came after plan {self._last_plan}")
                self._last_plan = header.step_id
                self._plans.put((header.step_id, body))
                return True
            case FrameKind.SHUTDOWN:
                self._plans.put(None)
                return False
            case _:
                raise PipelineError(f"{header.kind.name} is not for a stage")

    def _take_loss(self, reason: str) -> None:
        """The head is gone (called by the channel's thread or the pulse)."""
        self._plans.put(PipelineError(f"the head is gone: {reason}"))
