"""The three links inside one process: queues between threads, for tests and in-process pipelines.

The same contract as over torch.distributed, checked by the same tests; what is on its way costs
nothing here and nobody can die without saying so. A stage that ends closes its links, which its
neighbours and the head see as they would see a broken connection.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from typing import TYPE_CHECKING

import torch

from atom_lite.parallel.link import PipelineError, Returned
from atom_lite.parallel.returns import Returns
from atom_lite.parallel.topology import Topology

if TYPE_CHECKING:
    from collections.abc import Callable


class MemoryPipeline:
    """Makes the links of all ranks of one pipeline; each may be made once and used by one rank."""

    def __init__(self, num_stages: int, tensor_parallel_size: int = 1) -> None:
        self._ranks = [
            Topology(num_stages=num_stages, tensor_parallel_size=tensor_parallel_size, rank=rank)
            for rank in range(num_stages * tensor_parallel_size)
        ]
        self._control = _Control(self._ranks[0])
        self._hops = {topology.rank: _Hop() for topology in self._ranks[tensor_parallel_size:]}

    def head_link(self, wake: Callable[[], None]) -> MemoryHeadLink:
        """The head's end of the control connections."""
        self._control.wake = wake
        return MemoryHeadLink(self._control)

    def stage_link(self, rank: int) -> MemoryStageLink:
        """A follower's end of its control connection."""
        return MemoryStageLink(self._ranks[rank], self._control)

    def hidden_link(self, rank: int, *, max_sends_in_flight: int) -> MemoryHiddenLink:
        """A rank's data connections."""
        topology = self._ranks[rank]
        outgoing = None if topology.next_rank is None else self._hops[topology.next_rank]
        return MemoryHiddenLink(self._hops.get(rank), outgoing, max_sends_in_flight)


class _Control:
    """What all control links share."""

    def __init__(self, topology: Topology) -> None:
        self.plans: list[queue.SimpleQueue[tuple[int, bytes] | None]] = [
            queue.SimpleQueue() for _ in range(topology.world_size)
        ]
        self.returns = Returns(topology, lambda: self.wake())
        self.failures: deque[str] = deque()
        self.head_has_closed = False
        self.wake: Callable[[], None] = lambda: None

    def fail(self, message: str) -> None:
        if not self.head_has_closed:
            self.failures.append(message)
            self.wake()


class MemoryHeadLink:
    """See HeadLink."""

    def __init__(self, control: _Control) -> None:
        self._control = control
        self._last_plan = -1

    def send_plan(self, step_id: int, body: bytes) -> None:
        """See HeadLink."""
        assert step_id > self._last_plan, f"plan {step_id} after {self._last_plan}"
        self._last_plan = step_id
        for plans in self._control.plans[1:]:
            plans.put((step_id, body))

    def poll_results(self) -> list[Returned]:
        """See HeadLink."""
        results = self._control.returns.take()
        if not self._control.failures:
            return results
        if not results:
            raise PipelineError("; ".join(self._control.failures))
        self._control.wake()
        return results

    def stage_of(self, step_id: int) -> int:
        """See HeadLink."""
        return self._control.returns.stage_of(step_id)

    def close(self) -> None:
        """See HeadLink."""
        self._control.head_has_closed = True
        for plans in self._control.plans[1:]:
            plans.put(None)


class MemoryStageLink:
    """See StageLink."""

    def __init__(self, topology: Topology, control: _Control) -> None:
        assert not topology.is_head
        self._name = topology.describe(topology.rank)
        self._topology = topology
        self._control = control
        self._plans = control.plans[topology.rank]
        self._last_returned = -1
        self._has_ended = False

    def receive_plan(self) -> tuple[int, bytes] | None:
        """See StageLink."""
        item = None if self._has_ended else self._plans.get()
        self._has_ended = item is None
        return item

    def send_result(self, step_id: int, body: bytes) -> None:
        """See StageLink."""
        assert self._topology.returns_results, "only the last stage returns results"
        self._count(step_id)
        self._control.returns.put_result(step_id, body)

    def send_times(self, step_id: int, body: bytes) -> None:
        """See StageLink."""
        assert self._topology.reports_times, "only the stages between report their times"
        self._count(step_id)
        self._control.returns.put_times(self._topology.stage, step_id, body)

    def report_failure(self, message: str) -> None:
        """See StageLink."""
        self._control.fail(f"{self._name} failed: {message}")

    def close(self) -> None:
        """See StageLink."""
        self._control.fail(f"{self._name} left")
        self._plans.put(None)

    def _count(self, step_id: int) -> None:
        assert step_id > self._last_returned, f"step {step_id} after {self._last_returned}"
        self._last_returned = step_id


class MemoryHiddenLink:
    """See HiddenLink."""

    def __init__(
        self, incoming: _Hop | None, outgoing: _Hop | None, max_sends_in_flight: int
    ) -> None:
        assert max_sends_in_flight >= 1
        self._incoming = incoming
        self._outgoing = outgoing
        self._max_sends_in_flight = max_sends_in_flight
        self._last_received = self._last_sent = -1

    def post_receive(
        self, step_id: int, shape: tuple[int, ...], dtype: torch.dtype
    ) -> MemoryReceive:
        """See HiddenLink."""
        assert self._incoming is not None, "nothing comes before the first stage"
        assert step_id > self._last_received, f"step {step_id} after {self._last_received}"
        self._last_received = step_id
        receive = MemoryReceive(step_id, torch.empty(shape, dtype=dtype))
        self._incoming.post(receive)
        return receive

    def send(self, step_id: int, tensor: torch.Tensor) -> None:
        """See HiddenLink."""
        assert self._outgoing is not None, "nothing comes after the last stage"
        assert step_id > self._last_sent, f"step {step_id} after {self._last_sent}"
        assert tensor.is_contiguous()
        self._last_sent = step_id
        self._outgoing.send(step_id, tensor, self._max_sends_in_flight)

    def close(self) -> None:
        """See HiddenLink."""
        for hop in (self._incoming, self._outgoing):
            if hop is not None:
                hop.close()


class MemoryReceive:
    """See PostedReceive."""

    def __init__(self, step_id: int, tensor: torch.Tensor) -> None:
        self._step_id = step_id
        self._tensor = tensor
        self._arrived = threading.Event()
        self._error: PipelineError | None = None

    def fill(self, step_id: int, tensor: torch.Tensor) -> None:
        """The sender's tensor has met this receive."""
        if (step_id, tensor.shape, tensor.dtype) == (
            self._step_id,
            self._tensor.shape,
            self._tensor.dtype,
        ):
            self._tensor.copy_(tensor)
            self._arrived.set()
            return
        self.fail(
            f"step {step_id} {tuple(tensor.shape)} {tensor.dtype} came where step {self._step_id} "
            f"{tuple(self._tensor.shape)} {self._tensor.dtype} was due"
        )

    def fail(self, message: str) -> None:
        """Nothing will come."""
        self._error = PipelineError(message)
        self._arrived.set()

    def wait(self) -> torch.Tensor:
        """See PostedReceive."""
        self._arrived.wait()
        if self._error is not None:
            raise self._error
        return self._tensor


class _Hop:
    """Pairs the sends of one rank with the receives of the next, in order."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._sent: deque[tuple[int, torch.Tensor]] = deque()
        self._posted: deque[MemoryReceive] = deque()
        self._closed = False

    def post(self, receive: MemoryReceive) -> None:
        with self._changed:
            self._require_open()
            self._posted.append(receive)
            self._match()

    def send(self, step_id: int, tensor: torch.Tensor, limit: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._sent) < limit)
            self._require_open()
            self._sent.append((step_id, tensor))
            self._match()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            for receive in self._posted:
                receive.fail("the stage before is gone")
            self._posted.clear()

    def _match(self) -> None:
        while self._sent and self._posted:
            self._posted.popleft().fill(*self._sent.popleft())
            self._changed.notify_all()

    def _require_open(self) -> None:
        if self._closed:
            raise PipelineError("the neighbouring stage is gone")
