"""What the head and the stages need of the connections between them: three protocols.

    head    -- plans ------------------> every other rank        HeadLink / StageLink
    head    <- results ----------------- last stage, TP rank 0
    head    <- times of steps ---------- stages between, TP rank 0
    head    <- failures, heartbeats ---> every other rank
    stage s -- hidden states ----------> stage s + 1             HiddenLink

Control (plans, results, times) is bytes that this package does not look into; data (hidden states)
is one tensor for each step. They are apart, so that a plan arrives while data still flows and every
stage knows the shape before the data comes.

All implementations keep the same contract tests: `distributed_link` and `distributed_hidden`
between processes, over the groups of torch.distributed or, on one host, of shared memory
(`groups`); `memory_link` over queues, inside one process.

Order is the safety argument of the whole pipeline (first in, first out in each direction), so every
implementation checks it and fails rather than reorder.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from atom_lite.errors import ConfigError, EngineError

if TYPE_CHECKING:
    import torch


class PipelineError(EngineError):
    """A stage died, hung or raised, or what it sent makes no sense. The run is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTiming:
    """How soon a silent peer is noticed.

    Args:
        heartbeat_seconds: interval in which each side of a control connection says that it lives.
            Must be well under the process groups' timeout, which ends any older pending receive.
        hang_seconds: silence after which a peer counts as hung. A peer that holds the GIL for long
            (a big import, a long C call) is silent too.
        close_seconds: most that `close` and `report_failure` wait for peers.
    """

    heartbeat_seconds: float = 1.0
    hang_seconds: float = 10.0
    close_seconds: float = 3.0

    def __post_init__(self) -> None:
        if not 0 < self.heartbeat_seconds <= self.hang_seconds / 2:
            raise ConfigError(
                f"heartbeat interval {self.heartbeat_seconds} s must be above 0 and at most half "
                f"of the hang timeout {self.hang_seconds} s"
            )


class Returned(NamedTuple):
    """What came home of one step."""

    step_id: int
    body: bytes  # of the last stage
    middle_times: list[bytes]  # of the stages between the first and the last, in order


class HeadLink(Protocol):
    """The head's end of the control connections to every other rank.

    Made with a `wake` function: called, on any thread, whenever `poll_results` has news.
    """

    def send_plan(self, step_id: int, body: bytes) -> None:
        """Send a plan to every other rank; returns before it has arrived.

        A peer that is gone shows in `poll_results`, not here. Step ids must increase. One thread
        at a time.
        """
        ...

    def poll_results(self) -> list[Returned]:
        """Results that came back since the last call, in order; never waits.

        A result is there once every middle stage has ended the step too.

        Raises:
            PipelineError: a peer is gone, hangs or reported a failure. Results that came before are
                returned first. The head catches it and ends the run.
        """
        ...

    def stage_of(self, step_id: int) -> int:
        """The first stage after stage 0 that has not ended its part of a step; for error messages.

        Only for a step whose result is not there.
        """
        ...

    def close(self) -> None:
        """End the stages' loops (their `receive_plan` returns None) and release the connections.

        Waits at most `LinkTiming.close_seconds`; also after a PipelineError, where it ends the
        stages that still live. Never raises.
        """
        ...


class StageLink(Protocol):
    """A follower's end of its control connection to the head."""

    def receive_plan(self) -> tuple[int, bytes] | None:
        """The next plan; waits for it. None when the head has closed or this end is closed.

        One thread only; it is not the thread that runs the model, so that the receive for the next
        step's hidden states is posted while this step still runs.

        Raises:
            PipelineError: the head is gone or hangs. The stage must end then.
        """
        ...

    def send_result(self, step_id: int, body: bytes) -> None:
        """Return a step's result; only the rank with `topology.returns_results` may.

        Returns before it has arrived; a head that is gone shows in `receive_plan`. Step ids must
        increase. One thread at a time.
        """
        ...

    def send_times(self, step_id: int, body: bytes) -> None:
        """Say which times are known now that a step is done; only with `topology.reports_times`.

        Such a rank must, for every step, and before it passes the hidden states on: so the head has
        them long before the result. Returns before it has arrived. Step ids must increase.
        """
        ...

    def report_failure(self, message: str) -> None:
        """Tell the head why this process is about to end; waits until that is on its way."""
        ...

    def close(self) -> None:
        """Say goodbye and release the connection; bounded in time, never raises."""
        ...


class PostedReceive(Protocol):
    """A receive that was posted and whose data may still be on its way."""

    def wait(self) -> torch.Tensor:
        """The tensor, which is the caller's; on an accelerator, the current stream waits for it.

        A second call gives the same tensor.

        Raises:
            PipelineError: the sender is gone.
        """
        ...


class HiddenLink(Protocol):
    """The data connection to the stage before (receives) and the stage after (sends).

    `post_receive` and `send` may be called by two different threads, each by one at a time.
    """

    def post_receive(
        self, step_id: int, shape: tuple[int, ...], dtype: torch.dtype
    ) -> PostedReceive:
        """Make room for the hidden states of a step, so that they can arrive at any time from now.

        Only for a plan that has come: nothing is ever pending while the pipeline is idle. Step ids
        must increase. Not in the first stage.

        Raises:
            PipelineError: the sender is gone.
        """
        ...

    def send(self, step_id: int, tensor: torch.Tensor) -> None:
        """Send the hidden states of a step to the next stage; returns before they have arrived.

        The tensor is kept until then and must not be written any more. At most
        `max_sends_in_flight` are kept: beyond that the call waits for the oldest. Step ids must
        increase. Not in the last stage.

        Raises:
            PipelineError: the receiver is gone.
        """
        ...

    def close(self) -> None:
        """Release the connections; sends still on their way may be lost."""
        ...
