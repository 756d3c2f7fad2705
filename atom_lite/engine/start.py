"""Config -> an executor that is ready to run plans: one stage here, or a pipeline of them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from atom_lite.engine.executor import LAST_STEP_SECONDS, Executor, LocalExecutor
from atom_lite.engine.forward_thread import ForwardThread
from atom_lite.engine.limits import resolve_stages
from atom_lite.engine.vocabulary import read_vocabulary
from atom_lite.errors import ConfigError
from atom_lite.parallel.placement import Placement, find_placement, one_host
from atom_lite.worker.device import count_accelerators
from atom_lite.worker.runner import Runner, RunnerInfo

if TYPE_CHECKING:
    from collections.abc import Callable

    from atom_lite.config import Config


def start_executor(
    config: Config, wake: Callable[[], None], *, pin: bool
) -> tuple[Executor, RunnerInfo]:
    """Load the model, over as many stages as the config says.

    Args:
        config: the whole tree.
        wake: of the head's loop; called from any thread when a step has come back.
        pin: give each stage of a pipeline its share of the cores. Off inside another program,
            whose own threads would be moved too.

    Raises:
        ConfigError: anything the operator can cause.
        EngineError: a stage failed while it started.
    """
    forward = ForwardThread()
    try:
        placement = _place(config, forward)
        if placement.num_stages == 1:
            runner = forward.call(
                lambda: Runner.load(config, vocabulary=lambda: read_vocabulary(config))
            )
            timeout = config.parallel.step_timeout_seconds
            executor = LocalExecutor(runner, forward, wake, step_timeout_seconds=timeout)
            return executor, runner.info
        from atom_lite.engine.pipeline import start_pipeline  # torch.distributed: a pipeline only

        pipeline, stage0 = start_pipeline(config, forward, wake, placement=placement, pin=pin)
        return pipeline, stage0.info
    except BaseException:
        forward.stop(LAST_STEP_SECONDS)
        raise


def _place(config: Config, forward: ForwardThread) -> Placement:
    placement = find_placement(config.parallel, os.environ)
    if placement is None:
        num_stages = resolve_stages(config, forward.call(lambda: count_accelerators(config)))
        return one_host(num_stages, config.parallel)
    if not placement.has_head:
        raise ConfigError(
            f"stage {placement.rank} cannot be the head; `atom_lite.serve` starts followers"
        )
    return placement
