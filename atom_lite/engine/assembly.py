"""Puts scheduler, chunk-size policy and executor together, for both ways to run the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import torch

from atom_lite.chunking.profile import Fingerprint
from atom_lite.engine.background_thread import BackgroundThread
from atom_lite.engine.chunking_desk import ChunkingDesk
from atom_lite.engine.chunking_policy import make_controller, policy_name
from atom_lite.engine.head import Head
from atom_lite.engine.limits import engine_ready, scheduler_limits
from atom_lite.engine.start import start_executor
from atom_lite.parallel.affinity import usable_cpus
from atom_lite.scheduler.scheduler import Scheduler
from atom_lite.worker.device import device_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from atom_lite.chunking.background import Background
    from atom_lite.chunking.controller import ChunkingController
    from atom_lite.config import Config
    from atom_lite.ipc.link import EngineLink
    from atom_lite.messages import EngineReady
    from atom_lite.scheduler.limits import SchedulerLimits
    from atom_lite.worker.runner import RunnerInfo

    MakeController: TypeAlias = Callable[[Config, SchedulerLimits, Background], ChunkingController]


class Assembly(NamedTuple):
    """An engine that is ready to run."""

    head: Head
    scheduler: Scheduler
    ready: EngineReady


def assemble(
    config: Config,
    link: EngineLink,
    *,
    pin: bool,
    controller_maker: MakeController = make_controller,
) -> Assembly:
    """Load the model and whatever the policy wants to know before the first request.

    Args:
        config: the whole tree.
        link: to the frontend.
        pin: keep the stages of a pipeline on cores of their own.
        controller_maker: makes the chunk-size policy; benchmarks compare several in one run.

    Raises:
        ConfigError: anything the operator can cause.
        EngineError: a stage failed.
    """
    executor, info = start_executor(config, link.wake, pin=pin)
    background = BackgroundThread(link.wake)
    try:
        limits = scheduler_limits(config, info)
        controller = controller_maker(config, limits, background)
        chunking = ChunkingDesk(
            controller,
            _fingerprint(config, info),
            background,
            policy=policy_name(config, limits),
            profile_path=config.chunking.dynamic_chunking_profile,
            block_size=limits.block_size,
            vocab_size=info.vocab_size,
        )
        first_step_id = chunking.load(
            executor, time_limit_seconds=config.parallel.step_timeout_seconds
        )
        scheduler = Scheduler(
            limits,
            planner=controller.planner,
            report=controller.report,
            needs_acknowledgement=lambda: controller.needs_acknowledgement,
            model_report=controller.model_report,
            first_step_id=first_step_id,
        )
    except BaseException:
        background.close()
        executor.close()
        raise
    head = Head(scheduler, executor, link, chunking)
    return Assembly(head, scheduler, engine_ready(limits, info))


def _fingerprint(config: Config, info: RunnerInfo) -> Fingerprint:
    return Fingerprint(
        model=f"{config.model.model} {info.architecture}",
        dtype=info.dtype if info.quantization == "none" else f"{info.dtype} {info.quantization}",
        device=device_name(torch.device(info.device)),
        num_threads=0 if info.device != "cpu" else config.model.threads or len(usable_cpus()),
        layers_per_stage=info.layers_per_stage,
    )
