"""Follower stages without a model, as processes: `python -m tests.pipeline.stage_process`.

The process that this starts is a nursery: it imports torch once (seconds) and forks a stage for
each line `start SPEC` on standard input (SPEC is JSON), answering with its process id; to
`wait PID SECONDS` it answers with the exit code, or `running`.

A stage has the shape of the real one: the main thread takes plans and posts receives, a second
thread "runs the model" (here: a roll of the rows, which keeps every bit) and passes the tensor on.
A plan is a `Step` as JSON, padded with spaces; it says what happens, also which stage raises or
hangs.

Exit codes of a stage: 0 after the head closed, 1 after a step raised, 3 when the head is gone.
"""

from __future__ import annotations

import hashlib
import os
import queue
import signal
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn

import msgspec
import torch

from atom_lite.parallel.distributed_hidden import DistributedHiddenLink
from atom_lite.parallel.distributed_link import DistributedStageLink
from atom_lite.parallel.groups import open_groups, open_store
from atom_lite.parallel.link import LinkTiming, PipelineError
from atom_lite.parallel.rendezvous import Rendezvous
from atom_lite.parallel.topology import Topology

if TYPE_CHECKING:
    from atom_lite.parallel.link import HiddenLink, PostedReceive, StageLink

MAX_SENDS_IN_FLIGHT = 4


@dataclass
class Spec:
    """What one process is told at its start."""

    topology: Topology
    rendezvous: Rendezvous
    timing: LinkTiming


@dataclass
class Step:
    """One plan."""

    shape: tuple[int, int]
    dtype: str = "float32"
    seed: int = 0
    delays: dict[int, float] = field(default_factory=dict)  # stage -> seconds of "compute"
    raises_in: int | None = None  # stage
    hangs_in: int | None = None  # stage: it stops itself
    result_bytes: int = 0  # padding of the result


@dataclass
class Outcome:
    """One result: the digest of the tensor that reached the last stage."""

    digest: str


def hidden_states(step: Step) -> torch.Tensor:
    """What the head's stage makes of a step."""
    generator = torch.Generator().manual_seed(step.seed)
    values = torch.randn(step.shape, generator=generator)
    return values.to(getattr(torch, step.dtype))


def digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


def run_stage(tensor: torch.Tensor, stage: int) -> torch.Tensor:
    """What stands for the layers of a stage."""
    return tensor.roll(stage, dims=0)


class Stage:
    """The loops of one follower."""

    def __init__(self, topology: Topology, link: StageLink, hidden: HiddenLink) -> None:
        self._topology = topology
        self._link = link
        self._hidden = hidden
        self._steps: queue.SimpleQueue[tuple[int, Step, PostedReceive | None] | None] = (
            queue.SimpleQueue()
        )
        self._forward = threading.Thread(target=self._run_steps, daemon=True)

    def run(self) -> int:
        self._forward.start()
        try:
            while (plan := self._link.receive_plan()) is not None:
                step_id, body = plan
                step = msgspec.json.decode(body, type=Step)
                receive = None
                if not self._topology.is_first_stage:
                    dtype = getattr(torch, step.dtype)
                    receive = self._hidden.post_receive(step_id, step.shape, dtype)
                self._steps.put((step_id, step, receive))
        except PipelineError as error:
            print(error, file=sys.stderr)
            return 3
        self._steps.put(None)
        self._forward.join(1)  # it may wait in gloo for a neighbour that hangs
        self._link.close()
        return 0

    def _run_steps(self) -> None:
        try:
            while (item := self._steps.get()) is not None:
                self._run_step(*item)
        except Exception as error:  # noqa: BLE001  reported, then this process ends
            self._link.report_failure(f"{type(error).__name__}: {error}")
            os._exit(1)

    def _run_step(self, step_id: int, step: Step, receive: PostedReceive | None) -> None:
        stage = self._topology.stage
        if step.raises_in == stage:
            raise ValueError("planted")
        if step.hangs_in == stage:
            os.kill(os.getpid(), signal.SIGSTOP)
        if receive is None:
            return
        tensor = run_stage(receive.wait(), stage)
        time.sleep(step.delays.get(stage, 0.0))  # stands for compute
        if self._topology.reports_times:
            self._link.send_times(step_id, b"%d" % stage)
        if not self._topology.is_last_stage:
            self._hidden.send(step_id, tensor)
        elif self._topology.returns_results:
            outcome = msgspec.json.encode(Outcome(digest(tensor)))
            self._link.send_result(step_id, outcome + b" " * step.result_bytes)


def run_follower(spec: Spec) -> NoReturn:
    store = open_store(spec.rendezvous, spec.topology)
    groups = open_groups(spec.topology, store, spec.rendezvous, data_backend="gloo")
    link = DistributedStageLink(spec.topology, groups, timing=spec.timing)
    hidden = DistributedHiddenLink(
        spec.topology,
        groups,
        device=torch.device("cpu"),
        max_sends_in_flight=MAX_SENDS_IN_FLIGHT,
    )
    code = Stage(spec.topology, link, hidden).run()
    sys.stderr.flush()
    # Here, while the groups are alive: tearing one down waits for transfers that may never end.
    os._exit(code)


def fork_stage(spec: Spec) -> int:
    """Start a stage; its process id."""
    if (pid := os.fork()) != 0:
        return pid
    try:
        run_follower(spec)
    finally:
        sys.stderr.flush()
        os._exit(70)


def exit_code(pid: int, seconds: float) -> int | None:
    """Wait for a stage to end; None when the time is over."""
    deadline = time.monotonic() + seconds
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            return None
        time.sleep(0.005)


def main() -> None:
    torch.set_num_threads(1)
    for line in sys.stdin:
        command, _, argument = line.partition(" ")
        if command == "start":
            print(fork_stage(msgspec.json.decode(argument, type=Spec)), flush=True)
        else:
            pid, seconds = argument.split()
            code = exit_code(int(pid), float(seconds))
            print("running" if code is None else code, flush=True)


if __name__ == "__main__":
    main()
