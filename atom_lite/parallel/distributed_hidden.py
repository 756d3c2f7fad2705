"""HiddenLink over torch.distributed: hidden states between neighbouring stages.

A send is started on the caller's thread and finishes while the next step runs. The receiver has
posted its buffer as soon as the plan came, usually long before, so the data moves at once: gloo
holds a tensor back until its receive is posted.

A transfer carries no step id (the buffer is the tensor itself): both ends follow the same plans in
the same order, which each end checks for itself.

On an accelerator (NCCL) a posted receive runs on a stream of its own; the buffer is allocated on
the stream that is current in `post_receive` and `wait` makes the then current stream wait.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import torch

from atom_lite.parallel.link import PipelineError
from atom_lite.parallel.peer_channel import gloo_reason

if TYPE_CHECKING:
    from atom_lite.parallel.groups import Groups, Transfer, TransferGroup
    from atom_lite.parallel.topology import Topology

# ranks inside a hop's group of two
_SENDER = 0
_RECEIVER = 1
_TAG = 0


class DistributedHiddenLink:
    """See HiddenLink.

    Args:
        topology: this rank's.
        groups: kept until `close`.
        device: where received tensors are put.
        max_sends_in_flight: most tensors kept for sends that have not arrived; at least the number
            of steps that may be in flight, or the pipeline stalls on them.
    """

    def __init__(
        self,
        topology: Topology,
        groups: Groups,
        *,
        device: torch.device,
        max_sends_in_flight: int,
    ) -> None:
        assert max_sends_in_flight >= 1
        self._device = device
        self._max_sends_in_flight = max_sends_in_flight
        self._incoming = groups.incoming_hidden
        self._outgoing = groups.outgoing_hidden
        self._sender = f"stage {topology.stage - 1}"
        self._receiver = f"stage {topology.stage + 1}"
        self._sends: deque[Transfer] = deque()
        self._last_received = self._last_sent = -1

    def post_receive(
        self, step_id: int, shape: tuple[int, ...], dtype: torch.dtype
    ) -> DistributedReceive:
        """See HiddenLink."""
        assert self._incoming is not None, "nothing comes before the first stage"
        assert step_id > self._last_received, f"step {step_id} after {self._last_received}"
        self._last_received = step_id
        tensor = torch.empty(shape, dtype=dtype, device=self._device)
        return DistributedReceive(self._incoming, tensor, self._sender)

    def send(self, step_id: int, tensor: torch.Tensor) -> None:
        """See HiddenLink."""
        assert self._outgoing is not None, "nothing comes after the last stage"
        assert step_id > self._last_sent, f"step {step_id} after {self._last_sent}"
        assert tensor.is_contiguous()
        self._last_sent = step_id
        try:
            while len(self._sends) >= self._max_sends_in_flight:
                self._sends.popleft().wait()
            self._sends.append(self._outgoing.send([tensor], _RECEIVER, _TAG))
        except RuntimeError as error:
            raise _gone(self._receiver, error) from error

    def close(self) -> None:
        """See HiddenLink."""
        self._sends.clear()
        self._incoming = self._outgoing = None


class DistributedReceive:
    """See PostedReceive; posted by its constructor."""

    def __init__(self, group: TransferGroup, tensor: torch.Tensor, sender: str) -> None:
        self._tensor = tensor
        self._sender = sender
        try:
            self._work: Transfer | None = group.recv([tensor], _SENDER, _TAG)
        except RuntimeError as error:
            raise _gone(sender, error) from error

    def wait(self) -> torch.Tensor:
        """See PostedReceive."""
        work, self._work = self._work, None  # gloo allows one wait only
        try:
            if work is not None:
                work.wait()
        except RuntimeError as error:
            raise _gone(self._sender, error) from error
        return self._tensor


def _gone(neighbour: str, error: RuntimeError) -> PipelineError:
    return PipelineError(f"{neighbour} is gone: {gloo_reason(error)}")
