"""The head's side of a pipeline: starts the follower stages and runs plans over them.

    start_pipeline: store -> followers started -> groups joined -> all load at once -> ready

The head runs stage 0's layers itself. A plan goes to every stage when it is scheduled; stage 0's
hidden states follow on the data link; the last stage's results wake the head. A follower that dies,
hangs or raises, at any point from its start on, ends the run with one PipelineError.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from atom_lite.engine.agreement import HeadTerms
from atom_lite.engine.executor import LAST_STEP_SECONDS, overdue_message
from atom_lite.engine.followers import Followers, local_shares
from atom_lite.engine.step_times import TimesByStage
from atom_lite.engine.step_watch import StepWatch
from atom_lite.messages import StepPlan, StepResult, StepTimes
from atom_lite.models.checkpoint import resolve_checkpoint
from atom_lite.models.partition import partition_layers
from atom_lite.models.spec import load_spec
from atom_lite.parallel.affinity import pin_process
from atom_lite.parallel.distributed_hidden import DistributedHiddenLink
from atom_lite.parallel.distributed_link import DistributedHeadLink
from atom_lite.parallel.groups import data_backend, open_store, resolved_address, run_store
from atom_lite.parallel.joining import join_groups
from atom_lite.parallel.link import HeadLink, HiddenLink, LinkTiming, PipelineError
from atom_lite.parallel.topology import Topology, name_stages
from atom_lite.worker.device import take_device
from atom_lite.worker.runner import Runner, StagePlace

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    from atom_lite.config import Config
    from atom_lite.engine.forward_thread import ForwardThread
    from atom_lite.parallel.groups import Groups
    from atom_lite.parallel.placement import Placement

logger = logging.getLogger(__name__)


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
        self._times_decoder = msgspec.msgpack.Decoder(list[StepTimes])
        self._times = TimesByStage(runner.info.num_stages)
        self._handed_on = -1  # written by the forward thread
        self._watch = StepWatch(step_timeout_seconds)

    def start(self, plan: StepPlan) -> None:
        """See Executor."""
        self._watch.start(plan.step_id, time.monotonic())
        self._links.control.send_plan(plan.step_id, msgspec.msgpack.encode(plan))

        def step() -> None:
            output = self._runner.run_stage(plan)
            self._times.put(0, output.times)
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
            for stage, body in enumerate(returned.middle_times, start=1):
                self._times.put(stage, self._times_decoder.decode(body))
            self._times.put(self._runner.info.num_stages - 1, result.times)
            results.append(msgspec.structs.replace(result, times=self._times.take()))
            self._watch.finish(result.step_id, now)
        if (step_id := self._watch.overdue(now)) is not None:
            where = self._links.control.stage_of(step_id) if step_id <= self._handed_on else 0
            limit = self._watch.limit_seconds
            raise PipelineError(overdue_message(f"stage {where}", step_id, limit))
        return results

    def close(self) -> None:
        """See Executor. The followers first: stage 0 may wait for one of them."""
        self._links.control.close()
        self._links.followers.end()
        self._forward.stop(LAST_STEP_SECONDS)
        self._links.hidden.close()


def start_pipeline(
    config: Config,
    forward: ForwardThread,
    wake: Callable[[], None],
    *,
    placement: Placement,
    pin: bool,
) -> tuple[PipelineExecutor, Runner]:
    """Start the stages, wait for those that others start, and wait until each has loaded.

    Args:
        config: the whole tree.
        forward: stage 0 is loaded and run here.
        wake: of the head's loop.
        placement: of at least 2 stages.
        pin: stages share this machine's cores, so each is kept on its share.

    Raises:
        ConfigError: flags or files, here or on another node, cannot be used.
        PipelineError: a follower failed or did not come up.
    """
    topology = Topology(num_stages=placement.num_stages, rank=0)
    device = forward.call(lambda: take_device(config.model.device, 0, placement.num_local))
    store = open_store(placement.rendezvous, topology)
    placement = placement.with_port(store.port)
    terms = HeadTerms(run_store(placement.rendezvous, store), topology)
    terms.publish_flags(config)
    shares = local_shares(placement) if pin and device.type == "cpu" else []
    followers = Followers(config, placement, shares)
    if shares:
        pin_process(shares[0])
    try:
        forward.call(lambda: _check_cut(config, placement.num_stages))
        groups = _join(topology, store, placement, terms, followers, data_backend(device))
    except BaseException:
        followers.end()
        raise
    hidden = DistributedHiddenLink(
        topology, groups, device=device, max_sends_in_flight=topology.num_stages + 1
    )
    control = DistributedHeadLink(topology, groups, wake=wake, timing=LinkTiming())
    links = Links(control=control, hidden=hidden, followers=followers)
    runner = _load(config, forward, terms, links, placement)
    timeout = config.parallel.step_timeout_seconds
    return PipelineExecutor(runner, forward, links, wake, step_timeout_seconds=timeout), runner


def _check_cut(config: Config, num_stages: int) -> None:
    """Raise ConfigError where the model has no such stages; each of them would say so."""
    model = config.model
    checkpoint = resolve_checkpoint(
        model.model, revision=model.revision, load_format=model.load_format
    )
    partition = config.parallel.pipeline_layer_partition
    partition_layers(load_spec(checkpoint), num_stages, partition)


def _join(
    topology: Topology,
    store: TCPStore,
    placement: Placement,
    terms: HeadTerms,
    followers: Followers,
    backend: str,
) -> Groups:
    """Connect to the followers, or fail as soon as one has ended or has other flags."""
    foreign = placement.foreign_ranks
    if foreign:
        logger.info(
            "Waiting at %s:%d for %s, at most %g s",
            resolved_address(placement.rendezvous),
            placement.rendezvous.port,
            name_stages(foreign),
            placement.rendezvous.startup_seconds,
        )

    def check() -> None:
        followers.check()
        terms.check_refusals(foreign)

    return join_groups(topology, store, placement.rendezvous, data_backend=backend, check=check)


def _load(
    config: Config, forward: ForwardThread, terms: HeadTerms, links: Links, placement: Placement
) -> Runner:
    """Load stage 0 while the others load theirs; the slower ones are waited for with a limit."""
    patience = placement.rendezvous.startup_seconds

    def check() -> None:
        try:
            links.control.poll_results()  # raises what a stage reports
            links.followers.check()
        except PipelineError:
            terms.check_loads()
            raise

    def check_load() -> None:
        check()
        terms.check_own_load(patience)

    try:
        place = StagePlace(stage=0, num_stages=placement.num_stages)
        runner = forward.call(lambda: Runner.load(config, place), check_load)
        terms.publish_facts(runner.info)
        terms.wait_until_ready(patience, check)
    except BaseException:
        links.control.close()
        links.followers.end()
        raise
    return runner
