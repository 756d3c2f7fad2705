"""The head's side of a pipeline: starts the follower stages and runs plans over them.

    start_pipeline: store -> followers started -> groups joined -> all load at once -> ready

The head runs stage 0's layers itself. A plan goes to every stage when it is scheduled; stage 0's
hidden states follow on the data link; the last stage's results wake the head. A follower that dies,
hangs or raises, at any point from its start on, ends the run with one PipelineError.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import torch

from atom_lite.engine.executor import LAST_STEP_SECONDS, overdue_message
from atom_lite.engine.stage_process import POOL_BLOCKS_KEY, READY_KEY, StageSpec
from atom_lite.engine.step_watch import StepWatch
from atom_lite.messages import StepPlan, StepResult
from atom_lite.parallel.affinity import Cpu, pin_process, split_cpus, usable_cpus
from atom_lite.parallel.distributed_hidden import DistributedHiddenLink
from atom_lite.parallel.distributed_link import DistributedHeadLink
from atom_lite.parallel.groups import open_groups, open_store
from atom_lite.parallel.link import HeadLink, HiddenLink, LinkTiming, PipelineError
from atom_lite.parallel.rendezvous import Rendezvous
from atom_lite.parallel.topology import Topology
from atom_lite.worker.runner import Runner, StagePlace

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    from atom_lite.config import Config
    from atom_lite.engine.forward_thread import ForwardThread
    from atom_lite.parallel.groups import Groups

STAGE_MODULE = "atom_lite.engine.stage_process"
_POLL_SECONDS = 0.02
_EXIT_SECONDS = 3.0

logger = logging.getLogger(__name__)


class Followers:
    """The processes of stages 1 and up, on this machine.

    Args:
        config: passed on to each.
        rendezvous: where they find the head's store.
        shares: the cores of each stage, the head's first; empty shares pin nothing.
    """

    def __init__(
        self, config: Config, rendezvous: Rendezvous, shares: list[tuple[Cpu, ...]]
    ) -> None:
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        for rank in range(1, len(shares)):
            spec = StageSpec(
                config=config,
                topology=Topology(num_stages=len(shares), rank=rank),
                rendezvous=rendezvous,
                cpus=shares[rank],
            )
            process = subprocess.Popen(
                [sys.executable, "-m", STAGE_MODULE],
                stdin=subprocess.PIPE,
                start_new_session=True,
            )
            self._processes[rank] = process
            assert process.stdin is not None
            process.stdin.write(msgspec.json.encode(spec) + b"\n")
            process.stdin.flush()

    def check(self) -> None:
        """Raise PipelineError when one of them has ended."""
        for rank, process in self._processes.items():
            code = process.poll()
            if code is not None:
                raise PipelineError(f"the process of stage {rank} ended with exit code {code}")

    def end(self) -> None:
        """Wait for them to end, and kill what does not (a stopped one never would)."""
        deadline = time.monotonic() + _EXIT_SECONDS
        for process in self._processes.values():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdin is not None
            process.stdin.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """The head's connections."""

    control: HeadLink
    hidden: HiddenLink
    followers: Followers


class PipelineExecutor:
    """See Executor; stage 0 runs on this process's forward thread.

    Args:
        runner: stage 0.
        forward: the thread on which it was made.
        links: to the other stages; closed with this.
        wake: called whenever `take_results` has news.
        step_timeout_seconds: how long the oldest step may take; 0 is for ever.
    """

    def __init__(
        self,
        runner: Runner,
        forward: ForwardThread,
        links: Links,
        wake: Callable[[], None],
        *,
        step_timeout_seconds: float,
    ) -> None:
        self._runner = runner
        self._forward = forward
        self._links = links
        self._wake = wake
        self._decoder = msgspec.msgpack.Decoder(StepResult)
        self._own_seconds: dict[int, float] = {}  # step id -> stage 0's duration
        self._handed_on = -1  # written by the forward thread
        self._watch = StepWatch(step_timeout_seconds)

    def start(self, plan: StepPlan) -> None:
        """See Executor."""
        self._watch.start(plan.step_id, time.monotonic())
        self._links.control.send_plan(plan.step_id, msgspec.msgpack.encode(plan))

        def step() -> None:
            output = self._runner.run_stage(plan)
            self._own_seconds[plan.step_id] = output.seconds
            if output.hidden is not None:
                self._links.hidden.send(plan.step_id, output.hidden)
            self._handed_on = plan.step_id

        # The result comes from the last stage; the head learns of a failure and of what is free.
        self._forward.start(step, self._wake)

    def last_handed_on(self) -> int:
        """See Executor."""
        return self._handed_on

    def take_results(self) -> list[StepResult]:
        """See Executor."""
        self._forward.take_results()  # raises what stage 0 raised
        now = time.monotonic()
        results = []
        for returned in self._links.control.poll_results():
            result = self._decoder.decode(returned.body)
            own = self._own_seconds.pop(result.step_id)
            seconds = [own, *returned.middle_seconds, *result.stage_seconds]
            results.append(msgspec.structs.replace(result, stage_seconds=seconds))
            self._watch.finish(result.step_id, now)
        if (step_id := self._watch.overdue(now)) is not None:
            where = self._links.control.stage_of(step_id) if step_id in self._own_seconds else 0
            limit = self._watch.limit_seconds
            raise PipelineError(overdue_message(f"stage {where}", step_id, limit))
        return results

    def close(self) -> None:
        """See Executor. The followers first: stage 0 may wait for one of them inside gloo."""
        self._links.control.close()
        self._links.followers.end()
        self._forward.stop(LAST_STEP_SECONDS)
        self._links.hidden.close()


def start_pipeline(
    config: Config,
    forward: ForwardThread,
    wake: Callable[[], None],
    *,
    num_stages: int,
    pin: bool,
) -> tuple[PipelineExecutor, Runner]:
    """Start all stages and wait until each has loaded its layers.

    Args:
        config: the whole tree.
        forward: stage 0 is loaded and run here.
        wake: of the head's loop.
        num_stages: at least 2.
        pin: stages share this machine's cores, so each is kept on its share.

    Raises:
        ConfigError: stage 0 cannot be loaded for a reason of the operator's.
        PipelineError: a follower failed or did not come up.
    """
    topology = Topology(num_stages=num_stages, rank=0)
    store = open_store(Rendezvous(), topology)
    rendezvous = Rendezvous(port=store.port)
    shares: list[tuple[Cpu, ...]] = [() for _ in range(num_stages)]
    if pin:
        shares = split_cpus(usable_cpus(), num_stages)
    followers = Followers(config, rendezvous, shares)
    if pin:
        pin_process(shares[0])
    try:
        groups = _join(topology, store, rendezvous, followers)
    except PipelineError:
        followers.end()
        raise
    hidden = DistributedHiddenLink(
        topology, groups, device=torch.device("cpu"), max_sends_in_flight=num_stages + 1
    )
    control = DistributedHeadLink(topology, groups, wake=wake, timing=LinkTiming())
    links = Links(control=control, hidden=hidden, followers=followers)
    try:
        place = StagePlace(stage=0, num_stages=num_stages)
        runner = forward.call(lambda: Runner.load(config, place))
        store.set(POOL_BLOCKS_KEY, str(runner.info.num_blocks))
        _wait_loaded(store, topology, links)
    except BaseException:
        links.control.close()
        followers.end()
        raise
    timeout = config.parallel.step_timeout_seconds
    return PipelineExecutor(runner, forward, links, wake, step_timeout_seconds=timeout), runner


def _join(
    topology: Topology, store: TCPStore, rendezvous: Rendezvous, followers: Followers
) -> Groups:
    """Connect to the followers, or fail as soon as one of them has ended."""
    joined: Future[Groups] = Future()

    def join() -> None:
        try:
            joined.set_result(open_groups(topology, store, rendezvous, data_backend="gloo"))
        except BaseException as error:  # noqa: BLE001  raised where the result is awaited
            joined.set_exception(error)

    # A thread, because gloo's own wait knows nothing of processes and lasts for minutes.
    threading.Thread(target=join, name="join", daemon=True).start()
    while not joined.done():
        followers.check()
        time.sleep(_POLL_SECONDS)
    return joined.result()


def _wait_loaded(store: TCPStore, topology: Topology, links: Links) -> None:
    keys = [f"{READY_KEY}/{rank}" for rank in topology.follower_ranks]
    while not store.check(keys):
        links.control.poll_results()  # raises what a stage reports
        links.followers.check()
        time.sleep(_POLL_SECONDS)
