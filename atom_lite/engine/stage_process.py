"""A follower stage: `python -m atom_lite.engine.stage_process`, started by the head.

It decides nothing. The main thread takes plans and posts receives, so that the next step's hidden
states arrive while this one runs; the forward thread loads the layers and runs them. Standard
input carries one line of JSON (`StageSpec`) and then stays open as the lifeline: a stage never
outlives its head.

Exit codes: 0 after the head closed, 1 after a failure here, 2 for what the operator asked for
and cannot have, 3 when the head is gone.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import msgspec
import torch

from atom_lite.config import Config
from atom_lite.engine.forward_thread import ForwardThread
from atom_lite.errors import ConfigError
from atom_lite.messages import StepPlan, StepResult
from atom_lite.observability.logs import configure_logging
from atom_lite.parallel.affinity import Cpu, pin_process
from atom_lite.parallel.distributed_hidden import DistributedHiddenLink
from atom_lite.parallel.distributed_link import DistributedStageLink
from atom_lite.parallel.groups import open_groups, open_store
from atom_lite.parallel.link import LinkTiming, PipelineError
from atom_lite.parallel.rendezvous import Rendezvous
from atom_lite.parallel.topology import Topology
from atom_lite.worker.runner import Runner, StagePlace

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    from atom_lite.parallel.link import HiddenLink, PostedReceive, StageLink

HEAD_GONE = 3
POOL_BLOCKS_KEY = "pool_blocks"
READY_KEY = "ready"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSpec:
    """What a stage is told at its start."""

    config: Config
    topology: Topology
    rendezvous: Rendezvous
    cpus: tuple[Cpu, ...] = ()  # this stage's share of the host's cores; empty: all


class Stage:
    """The loops of one follower."""

    def __init__(self, spec: StageSpec, link: StageLink, hidden: HiddenLink) -> None:
        self._topology = spec.topology
        self._link = link
        self._hidden = hidden
        self._forward = ForwardThread()
        self._runner: Runner | None = None

    def load(self, spec: StageSpec, store: TCPStore) -> None:
        """Load the layers; the pool's size comes from the head, through the store."""

        def pool_blocks() -> int:
            store.wait([POOL_BLOCKS_KEY])
            return int(store.get(POOL_BLOCKS_KEY))

        place = StagePlace(
            stage=spec.topology.stage,
            num_stages=spec.topology.num_stages,
            pool_blocks=pool_blocks,
        )
        self._runner = self._forward.call(lambda: Runner.load(spec.config, place))
        store.set(f"{READY_KEY}/{spec.topology.rank}", "1")

    def run(self) -> int:
        """Take plans until the head closes; the exit code."""
        assert self._runner is not None
        decoder = msgspec.msgpack.Decoder(StepPlan)
        while (item := self._link.receive_plan()) is not None:
            step_id, body = item
            plan = decoder.decode(body)
            receive = None
            if plan.rows:  # a plan without rows only says what to forget
                shape, dtype = self._runner.hidden_layout(plan)
                receive = self._hidden.post_receive(step_id, shape, dtype)
            self._start(self._runner, plan, receive)
        self._forward.stop(1.0)  # it may wait for a neighbour that hangs
        return 0

    def _start(self, runner: Runner, plan: StepPlan, receive: PostedReceive | None) -> None:
        def step() -> None:
            try:
                self._run_step(runner, plan, receive)
            except BaseException as error:
                logger.exception("%s failed", self._topology.describe(self._topology.rank))
                self._link.report_failure(f"{type(error).__name__}: {error}")
                os._exit(1)

        self._forward.start(step, lambda: None)

    def _run_step(self, runner: Runner, plan: StepPlan, receive: PostedReceive | None) -> None:
        output = runner.run_stage(plan, None if receive is None else receive.wait)
        if self._topology.reports_seconds:
            self._link.send_seconds(plan.step_id, output.seconds)
        if output.hidden is not None:
            self._hidden.send(plan.step_id, output.hidden)
        elif self._topology.returns_results:
            result = StepResult(
                step_id=plan.step_id, tokens=output.tokens, stage_seconds=[output.seconds]
            )
            self._link.send_result(plan.step_id, msgspec.msgpack.encode(result))


def _exit(code: int) -> NoReturn:
    """End now, while the groups are alive: tearing one down waits for transfers that never end."""
    logging.shutdown()
    os._exit(code)


def main() -> NoReturn:
    """Join the pipeline, load, run, exit."""
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, signal.SIG_IGN)
    spec = msgspec.json.decode(sys.stdin.buffer.readline(), type=StageSpec)
    threading.Thread(target=_watch_lifeline, daemon=True).start()
    configure_logging(spec.config.observability.log_level)
    if spec.cpus:
        pin_process(spec.cpus)
    try:
        store = open_store(spec.rendezvous, spec.topology)
        groups = open_groups(spec.topology, store, spec.rendezvous, data_backend="gloo")
        link = DistributedStageLink(spec.topology, groups, timing=LinkTiming())
        hidden = DistributedHiddenLink(
            spec.topology,
            groups,
            device=torch.device("cpu"),
            max_sends_in_flight=spec.topology.num_stages + 1,
        )
        _exit(_load_and_run(spec, store, link, hidden))
    except PipelineError as error:
        logger.error("%s: %s", spec.topology.describe(spec.topology.rank), error)
        _exit(HEAD_GONE)


def _load_and_run(spec: StageSpec, store: TCPStore, link: StageLink, hidden: HiddenLink) -> int:
    stage = Stage(spec, link, hidden)
    try:
        stage.load(spec, store)
    except ConfigError as error:
        link.report_failure(str(error))
        return 2
    except Exception as error:
        logger.exception("%s could not load", spec.topology.describe(spec.topology.rank))
        link.report_failure(f"{type(error).__name__}: {error}")
        return 1
    code = stage.run()
    link.close()
    return code


def _watch_lifeline() -> None:
    """End with the head: its end of standard input closes when it dies."""
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os._exit(HEAD_GONE)


if __name__ == "__main__":
    main()
