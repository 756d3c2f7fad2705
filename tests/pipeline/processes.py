"""A head in this process and its stages in processes of their own, over loopback."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time

import msgspec
import torch

from atom_lite.parallel.distributed_hidden import DistributedHiddenLink
from atom_lite.parallel.distributed_link import DistributedHeadLink
from atom_lite.parallel.groups import open_groups, open_store
from atom_lite.parallel.link import LinkTiming, Returned
from atom_lite.parallel.rendezvous import Rendezvous
from atom_lite.parallel.topology import Topology
from tests.pipeline.stage_process import (
    MAX_SENDS_IN_FLIGHT,
    Outcome,
    Spec,
    Step,
    digest,
    hidden_states,
    run_stage,
)

START_SECONDS = 90


class Nursery:
    """Starts stage processes quickly; see `stage_process`.

    Args:
        is_one_host: whether the runs that it serves use shared memory; else gloo.
    """

    def __init__(self, *, is_one_host: bool) -> None:
        self.is_one_host = is_one_host
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.pipeline.stage_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def ask(self, line: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(line, file=self._process.stdin, flush=True)
        return self._process.stdout.readline().strip()

    def start(self, spec: Spec) -> StageHandle:
        return StageHandle(self, int(self.ask(f"start {msgspec.json.encode(spec).decode()}")))

    def close(self) -> None:
        self._process.communicate()


class StageHandle:
    """One stage process."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self._nursery = nursery
        self.pid = pid
        self._exit_code: int | None = None

    def wait(self, seconds: float) -> int:
        if self._exit_code is None:
            answer = self._nursery.ask(f"wait {self.pid} {seconds}")
            assert answer != "running", f"process {self.pid} still runs after {seconds} s"
            self._exit_code = int(answer)
        return self._exit_code

    def send_signal(self, number: signal.Signals) -> None:
        assert self._exit_code is None
        os.kill(self.pid, number)

    def kill(self) -> None:
        if self._exit_code is None:
            os.kill(self.pid, signal.SIGKILL)


class Pipeline:
    """The head's side of a run; `close` leaves no process behind."""

    def __init__(
        self,
        nursery: Nursery,
        num_stages: int,
        *,
        tensor_parallel_size: int = 1,
        timing: LinkTiming | None = None,
        group_seconds: float = 60,
    ) -> None:
        timing = timing or LinkTiming()
        self.topology = Topology(
            num_stages=num_stages, tensor_parallel_size=tensor_parallel_size, rank=0
        )
        rendezvous = Rendezvous(
            startup_seconds=START_SECONDS,
            group_seconds=group_seconds,
            is_one_host=nursery.is_one_host,
        )
        self._store = open_store(rendezvous, self.topology)
        rendezvous = dataclasses.replace(rendezvous, port=self._store.port)
        self.stages = {
            rank: nursery.start(
                Spec(dataclasses.replace(self.topology, rank=rank), rendezvous, timing)
            )
            for rank in self.topology.follower_ranks
        }
        try:
            groups = open_groups(self.topology, self._store, rendezvous, data_backend="gloo")
        except BaseException:
            self.kill_stages()
            raise
        self.woken = threading.Event()
        self.link = DistributedHeadLink(self.topology, groups, wake=self.woken.set, timing=timing)
        self.hidden = DistributedHiddenLink(
            self.topology,
            groups,
            device=torch.device("cpu"),
            max_sends_in_flight=MAX_SENDS_IN_FLIGHT,
        )

    def start(self, step_id: int, step: Step, padding: int = 0) -> None:
        """Send a plan and, as stage 0, its hidden states."""
        self.link.send_plan(step_id, msgspec.json.encode(step) + b" " * padding)
        self.hidden.send(step_id, hidden_states(step))

    def wait_for_results(self, count: int, seconds: float = 60) -> list[tuple[int, Outcome]]:
        results: list[Returned] = []
        deadline = time.monotonic() + seconds
        while len(results) < count:
            assert self.woken.wait(deadline - time.monotonic()), f"{len(results)} of {count} came"
            self.woken.clear()
            results += self.link.poll_results()
        for result in results:  # each stage in its place, see `stage_process.run_stage`
            assert result.middle_times == [b"%d" % stage for stage in self.topology.middle_stages]
        return [
            (result.step_id, msgspec.json.decode(result.body, type=Outcome)) for result in results
        ]

    def expected(self, step: Step) -> Outcome:
        tensor = hidden_states(step)
        for stage in range(1, self.topology.num_stages):
            tensor = run_stage(tensor, stage)
        return Outcome(digest(tensor))

    def close(self) -> dict[int, int]:
        """End the run; the exit codes of the stages by rank."""
        try:
            self.hidden.close()
            self.link.close()
            return {rank: process.wait(30) for rank, process in self.stages.items()}
        finally:
            self.kill_stages()

    def kill_stages(self) -> None:
        for process in self.stages.values():
            process.kill()
            process.wait(30)
