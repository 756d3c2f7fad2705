"""Config -> the chunk-size policy that the head holds.

The policies are pure (`atom_lite.chunking`); here flags, limits and the environment become one of
them. What the head does with it is in `chunking_desk`. Head process, once at start.
"""

from __future__ import annotations

import os
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from atom_lite.chunking.atom_calibrator import AtomCalibrator
from atom_lite.chunking.background import Inline
from atom_lite.chunking.calibrator import Calibrator
from atom_lite.chunking.controller import AtomController, FittedController, StaticController
from atom_lite.chunking.planner import plan_limits
from atom_lite.chunking.planners.atom import AtomPlanner, AtomSettings
from atom_lite.chunking.planners.fixed import FixedPlanner
from atom_lite.chunking.planners.linear import LinearPlanner
from atom_lite.chunking.planners.makespan import MakespanPlanner
from atom_lite.chunking.planners.sglang import SglangPlanner, SglangSettings
from atom_lite.chunking.refusal import Notice
from atom_lite.config import DEFAULT_SMOOTH_FACTOR, KV_CONSUMER, SMOOTH_FACTOR_VARIABLE
from atom_lite.engine.chunking_desk import log_notices
from atom_lite.errors import ConfigError

if TYPE_CHECKING:
    from dataclasses import Field

    from atom_lite.chunking.background import Background
    from atom_lite.chunking.controller import ChunkingController, ModelPlanner
    from atom_lite.chunking.planner import PlanLimits
    from atom_lite.config import ChunkingConfig, Config
    from atom_lite.scheduler.scheduler import SchedulerLimits

_IS_CONSUMER = f"kv_role is {KV_CONSUMER}"
# Settings that only some policies use.
_USED_BY = {
    "dynamic_chunking_smooth_factor": ("atom", "sglang"),
    "dynamic_chunking_min_chunk_size": ("atom",),
    "dynamic_chunking_profile": ("makespan", "sglang"),
}


def make_controller(
    config: Config, limits: SchedulerLimits, background: Background | None = None
) -> ChunkingController:
    """The policy that the flags name.

    Args:
        config: the whole tree.
        limits: of the scheduler.
        background: where plans are searched and models fitted; by default at once, where asked.

    Raises:
        ConfigError: settings that the policy cannot work with.
    """
    settings = config.chunking
    off = _why_off(config, limits)
    if off == _IS_CONSUMER:
        text = (
            f"disabling dynamic chunking because {off}: a decode instance runs no prefills; "
            "KV transfer is not supported yet, so this server computes its own"
        )
        log_notices([Notice("warning", text)])
    else:
        log_notices(_ignored_settings(settings, learns=limits.batching_policy == "slo"))
    background = background or Inline()
    match "fixed" if off is not None else settings.dynamic_chunking_policy:
        case "fixed":
            return _unplanned(FixedPlanner(), off or "the policy is fixed", limits, background)
        case "linear":
            linear = LinearPlanner.from_budget(limits.prefill_step_tokens)
            return _unplanned(linear, "the policy is a static schedule", limits, background)
        case "atom":
            return _atom(config, limits)
        case _:
            planner = _model_planner(config, limits, background)
            return _fitted(planner, limits, background)


def policy_name(config: Config, limits: SchedulerLimits) -> str:
    """The policy in force, as it is shown."""
    off = _why_off(config, limits) is not None
    return "fixed" if off else config.chunking.dynamic_chunking_policy


def _why_off(config: Config, limits: SchedulerLimits) -> str | None:
    """Why chunks are fixed whatever the policy's name; None where it is in force."""
    if not config.chunking.enable_dynamic_chunking:
        return "dynamic chunking is not enabled"
    if config.transfer.kv_role == KV_CONSUMER:
        return _IS_CONSUMER
    if limits.pipeline_depth == 1:
        return "there is one pipeline stage, and no pipeline to keep busy"
    return None


def _ignored_settings(settings: ChunkingConfig, *, learns: bool) -> list[Notice]:
    """ATOM's command line is taken as it is; what has no effect under this policy is said.

    `learns`: whatever the policy, a latency model is learned, and the profile keeps it.
    """
    policy = settings.dynamic_chunking_policy
    given = [field.name for field in fields(settings) if _is_given(settings, field)]
    if settings.enable_dynamic_chunking:
        ignored = [name for name in given if policy not in _USED_BY.get(name, (policy,))]
        why = f"with --dynamic-chunking-policy {policy}"
    else:
        ignored, why = given, "without --enable-dynamic-chunking"
    if learns:
        ignored = [name for name in ignored if name != "dynamic_chunking_profile"]
    flags = [f"--{name.replace('_', '-')}" for name in ignored]
    return [Notice("warning", f"{flag} has no effect {why}") for flag in flags]


def _is_given(settings: ChunkingConfig, field: Field[Any]) -> bool:
    return bool(getattr(settings, field.name) != field.default)


def _unplanned(
    planner: FixedPlanner | LinearPlanner,
    reason: str,
    limits: SchedulerLimits,
    background: Background,
) -> ChunkingController:
    """Chunks that need no model; one is learned where the batching policy sizes steps with it."""
    if limits.batching_policy == "slo":
        return _fitted(planner, limits, background)
    return StaticController(planner, reason)


def _fitted(
    planner: ModelPlanner, limits: SchedulerLimits, background: Background
) -> FittedController:
    """A planner on our own calibration."""
    sizes = _plan_limits(limits)
    calibrator = Calibrator(limits.pipeline_depth, sizes, background)
    return FittedController(planner, calibrator, sizes, max_model_len=limits.max_model_len)


def _model_planner(
    config: Config, limits: SchedulerLimits, background: Background
) -> SglangPlanner | MakespanPlanner:
    """The policies that plan with the fitted models."""
    if config.chunking.dynamic_chunking_policy != "sglang":
        return MakespanPlanner(_plan_limits(limits), background=background)
    return SglangPlanner(
        SglangSettings(
            base_tokens=limits.prefill_step_tokens,
            page_tokens=limits.block_size,
            max_model_len=limits.max_model_len,
            smooth_factor=smooth_factor(config),
        )
    )


def _plan_limits(limits: SchedulerLimits) -> PlanLimits:
    return plan_limits(
        min(limits.prefill_step_tokens, limits.max_model_len),
        floor_tokens=limits.least_chunk_tokens,
    )


def _atom(config: Config, limits: SchedulerLimits) -> AtomController:
    settings = AtomSettings(
        budget_tokens=limits.prefill_step_tokens,
        smooth_factor=smooth_factor(config),
        min_chunk_tokens=config.chunking.dynamic_chunking_min_chunk_size,
        block_size=limits.block_size,
        max_model_len=limits.max_model_len,
    )
    calibrator = AtomCalibrator(settings, num_stages=limits.pipeline_depth)
    log_notices(calibrator.start_notices())
    return AtomController(AtomPlanner(settings), calibrator)


def smooth_factor(config: Config) -> float:
    """The flag, else the environment's variable, else ATOM's default.

    Raises:
        ConfigError: the variable is no number from 0 to 1.
    """
    if config.chunking.dynamic_chunking_smooth_factor is not None:
        return config.chunking.dynamic_chunking_smooth_factor
    text = os.environ.get(SMOOTH_FACTOR_VARIABLE)
    if text is None:
        return DEFAULT_SMOOTH_FACTOR
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 1.0:
        raise ConfigError(f"{SMOOTH_FACTOR_VARIABLE}={text}: must be a number from 0 to 1")
    return value
