"""A follower stage: `python -m atom_lite.engine.stage_process`, or a rank of torchrun.

It decides nothing. The main thread takes plans and posts receives, so that the next step's hidden
states arrive while this one runs; the forward thread loads the layers and runs them. Started by the
head or by its node's launcher, it gets one line of JSON (`StageSpec`) on standard input, which then
stays open as the lifeline: a stage never outlives who started it. Under torchrun it is the process
that torchrun started, and what it must know comes from the flags.

Exit codes: 0 after the head closed, 1 after a failure here, 2 for what the operator asked for
and cannot have, 3 when the head is gone.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, NoReturn

import msgspec

from atom_lite.engine.agreement import FollowerTerms
from atom_lite.engine.followers import local_shares
from atom_lite.engine.forward_thread import ForwardThread
from atom_lite.engine.node import HEAD_GONE
from atom_lite.engine.stage_spec import StageSpec
from atom_lite.engine.vocabulary import read_vocabulary
from atom_lite.engine.without_transformers import stand_in_for_transformers
from atom_lite.errors import ConfigError
from atom_lite.messages import StepPlan, StepResult
from atom_lite.observability.logs import configure_logging
from atom_lite.parallel.affinity import pin_process
from atom_lite.parallel.distributed_hidden import DistributedHiddenLink
from atom_lite.parallel.distributed_link import DistributedStageLink
from atom_lite.parallel.groups import data_backend, open_store, run_store
from atom_lite.parallel.joining import join_groups
from atom_lite.parallel.link import LinkTiming, PipelineError
from atom_lite.worker.device import take_device
from atom_lite.worker.runner import Runner, StagePlace

if TYPE_CHECKING:
    import torch

    from atom_lite.config import Config
    from atom_lite.parallel.link import HiddenLink, PostedReceive, StageLink
    from atom_lite.parallel.placement import Placement

logger = logging.getLogger(__name__)


class Stage:
    """The loops of one follower."""

    def __init__(
        self, spec: StageSpec, forward: ForwardThread, link: StageLink, hidden: HiddenLink
    ) -> None:
        self._spec = spec
        self._topology = spec.topology
        self._link = link
        self._hidden = hidden
        self._forward = forward
        self._runner: Runner | None = None

    def load(self, terms: FollowerTerms) -> None:
        """Load the layers, with as many KV blocks as the head has, and compare the rest with it.

        However long that takes or hangs, it ends when the head does.
        """
        place = StagePlace(
            stage=self._topology.stage,
            num_stages=self._topology.num_stages,
            pool_blocks=terms.pool_blocks,
        )
        config = self._spec.config
        self._runner = self._forward.call(
            lambda: Runner.load(config, place, vocabulary=lambda: read_vocabulary(config)),
            terms.check_head,
        )
        terms.check_facts(self._runner.info)

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
                logger.exception("%s failed", self._topology.name)
                self._link.report_failure(f"{type(error).__name__}: {error}")
                os._exit(1)

        self._forward.start(step, lambda: None)

    def _run_step(self, runner: Runner, plan: StepPlan, receive: PostedReceive | None) -> None:
        output = runner.run_stage(plan, None if receive is None else receive.wait)
        if self._topology.reports_times:
            self._link.send_times(plan.step_id, msgspec.msgpack.encode(output.times))
        if output.hidden is not None:
            self._hidden.send(plan.step_id, output.hidden)
        elif self._topology.returns_results:
            result = StepResult(
                step_id=plan.step_id,
                tokens=output.tokens,
                times=output.times,
                prompt_scores=list(output.prompt_scores),
                errors=list(output.errors),
            )
            self._link.send_result(plan.step_id, msgspec.msgpack.encode(result))


def _exit(code: int) -> NoReturn:
    """End now, while the groups are alive: tearing one down waits for transfers that never end."""
    logging.shutdown()
    os._exit(code)


def main() -> NoReturn:
    """Run the stage that standard input says."""
    _ignore_signals()
    spec = msgspec.json.decode(sys.stdin.buffer.readline(), type=StageSpec)
    threading.Thread(target=_watch_lifeline, daemon=True).start()
    configure_logging(spec.config.observability.log_level)
    _exit(_run(spec))


def run_as_rank(config: Config, placement: Placement) -> NoReturn:
    """Become one stage, in a process that torchrun started.

    A signal ends it as long as it starts; afterwards only the head does, which lets running streams
    finish first.
    """
    rank = placement.rank
    cpus = local_shares(placement)[placement.local_index(rank)]
    logger.info(
        "Rank %d: waiting for the head at %s:%d, at most %g s",
        rank,
        placement.rendezvous.address,
        placement.rendezvous.port,
        placement.rendezvous.startup_seconds,
    )
    spec = StageSpec(config=config, rank=rank, placement=placement, cpus=cpus, has_own_flags=True)
    _exit(_run(spec))


def _run(spec: StageSpec) -> int:
    """Join the pipeline, load, run; the exit code."""
    stand_in_for_transformers()
    topology, rendezvous = spec.topology, spec.placement.rendezvous
    forward = ForwardThread()
    try:
        device = _take_device(spec, forward)
        store = open_store(rendezvous, topology)
        terms = FollowerTerms(run_store(rendezvous, store), topology, rendezvous.startup_seconds)
        if spec.has_own_flags:
            terms.check_flags(spec.config)
        backend = data_backend(device)
        groups = join_groups(topology, store, rendezvous, data_backend=backend)
        link = DistributedStageLink(topology, groups, timing=LinkTiming())
        hidden = DistributedHiddenLink(
            topology, groups, device=device, max_sends_in_flight=topology.num_stages + 1
        )
        return _load_and_run(Stage(spec, forward, link, hidden), terms, link, topology.name)
    except ConfigError as error:
        logger.error("%s: %s", topology.name, error)
        return 2
    except PipelineError as error:
        logger.error("%s: %s", topology.name, error)
        return HEAD_GONE


def _take_device(spec: StageSpec, forward: ForwardThread) -> torch.device:
    """This stage's device; on a CPU, its cores."""
    placement = spec.placement
    index = placement.local_index(spec.rank)
    device = forward.call(lambda: take_device(spec.config.model.device, index, placement.num_local))
    if spec.cpus and device.type == "cpu":
        pin_process(spec.cpus)
    return device


def _load_and_run(stage: Stage, terms: FollowerTerms, link: StageLink, name: str) -> int:
    try:
        stage.load(terms)
        _ignore_signals()
        code = stage.run()
    except ConfigError as error:
        logger.error("%s: %s", name, error)
        terms.tell_unusable(str(error))
        link.report_failure(str(error))
        return 2
    except PipelineError:
        raise
    except Exception as error:
        logger.exception("%s failed", name)
        link.report_failure(f"{type(error).__name__}: {error}")
        return 1
    link.close()
    return code


def _ignore_signals() -> None:
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, signal.SIG_IGN)


def _watch_lifeline() -> None:
    """End with the head: its end of standard input closes when it dies."""
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os._exit(HEAD_GONE)


if __name__ == "__main__":
    main()
