"""Chunk-size policies by name, as one simulated run needs them.

    makespan               plans each prompt; chunks of at most 32K
    atom:32K:0.75          ATOM's rule: budget, smooth factor (and its floor of 4096)
    sglang:8K  linear:16K  fixed:4096
    fixed:best  atom:best  tuned in hindsight: every budget is tried, the best one is shown

The latency models are known to the policy, or it learns them from the run, as in the server. Runs
in simulations only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, cast, get_args

from atom_lite.chunking.atom_calibrator import AtomCalibrator
from atom_lite.chunking.calibrator import Calibrator
from atom_lite.chunking.controller import AtomController, FittedController, StaticController
from atom_lite.chunking.planner import PlanLimits, plan_limits
from atom_lite.chunking.planners.atom import AtomPlanner, AtomSettings
from atom_lite.chunking.planners.fixed import FixedPlanner
from atom_lite.chunking.planners.linear import LinearPlanner
from atom_lite.chunking.planners.makespan import MakespanPlanner
from atom_lite.chunking.planners.sglang import SglangPlanner, SglangSettings
from atom_lite.config import DEFAULT_MIN_CHUNK_TOKENS, DEFAULT_SMOOTH_FACTOR
from atom_lite.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atom_lite.chunking.controller import ChunkingController
    from atom_lite.chunking.latency_model import LatencyModel
    from atom_lite.scheduler.limits import SchedulerLimits

PolicyName: TypeAlias = Literal["makespan", "atom", "sglang", "linear", "fixed"]
NAMES: tuple[str, ...] = get_args(PolicyName)
SMOOTHED = ("atom", "sglang")
DEFAULT_BUDGET_TOKENS = 32768
HINDSIGHT_SMOOTH_FACTOR = 1.0
HINDSIGHT_MIN_CHUNK_TOKENS = 64
# What an operator would try by hand; ATOM's best base is narrow and needs the finer grid.
FIXED_BUDGETS = (512, 1024, 2048, 4096, 6144, 8192, 12288, 16384, 32768)
ATOM_BUDGETS = tuple(range(2048, 32768 + 1, 512))
LEAST_BUDGET_TOKENS = 64
UNITS = {"": 1, "K": 1024, "M": 1024 * 1024}


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySpec:
    """One policy with its settings; `budget_tokens` bounds a step without decodes."""

    name: PolicyName
    budget_tokens: int = DEFAULT_BUDGET_TOKENS
    smooth_factor: float = DEFAULT_SMOOTH_FACTOR
    min_chunk_tokens: int = DEFAULT_MIN_CHUNK_TOKENS

    def __str__(self) -> str:
        """As it is written on the command line."""
        if self.name == "makespan" and self.budget_tokens == DEFAULT_BUDGET_TOKENS:
            return self.name
        text = f"{self.name}:{self.budget_tokens}"
        return f"{text}:{self.smooth_factor:g}" if self.name in SMOOTHED else text


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """Policies of which the best run counts: one, or many where it is tuned in hindsight."""

    text: str
    candidates: tuple[PolicySpec, ...]


def parse_tokens(text: str) -> int:
    """A number of tokens, such as 4096 or 32K.

    Raises:
        ConfigError: it is none.
    """
    match = re.fullmatch(r"(\d{1,12})([KM]?)", text.upper())
    if match is None or int(match[1]) < 1:
        raise ConfigError(f"{text!r} is no number of tokens: write 4096 or 32K, at least 1")
    return int(match[1]) * UNITS[match[2]]


def parse_contest(text: str) -> Contest:
    """`NAME[:BUDGET[:SMOOTH]]`, where the budget may be "best".

    Raises:
        ConfigError: an unknown policy, or settings that it does not have.
    """
    name, *settings = text.split(":")
    if name not in NAMES:
        raise ConfigError(f"--policy {text}: there is no policy {name!r}, only {', '.join(NAMES)}")
    policy = cast("PolicyName", name)
    if len(settings) > (2 if name in SMOOTHED else 1):
        raise ConfigError(f"--policy {text}: {name} takes fewer settings")
    if settings[:1] == ["best"]:
        smooth = _smooth(text, settings[1:], HINDSIGHT_SMOOTH_FACTOR)
        specs = [
            PolicySpec(
                name=policy,
                budget_tokens=budget,
                smooth_factor=smooth,
                min_chunk_tokens=HINDSIGHT_MIN_CHUNK_TOKENS,
            )
            for budget in (ATOM_BUDGETS if name == "atom" else FIXED_BUDGETS)
        ]
        return Contest(text=text, candidates=tuple(specs))
    budget = parse_tokens(settings[0]) if settings else DEFAULT_BUDGET_TOKENS
    if budget < LEAST_BUDGET_TOKENS:
        raise ConfigError(
            f"--policy {text}: the budget is {budget}, must be at least {LEAST_BUDGET_TOKENS}"
        )
    spec = PolicySpec(
        name=policy,
        budget_tokens=budget,
        smooth_factor=_smooth(text, settings[1:], DEFAULT_SMOOTH_FACTOR),
    )
    return Contest(text=str(spec), candidates=(spec,))


def informed_controller(
    spec: PolicySpec, models: Sequence[LatencyModel], limits: SchedulerLimits
) -> ChunkingController:
    """The policy with the true models from the first chunk on; it learns nothing."""
    reason = "the models are given"
    models = tuple(models)
    match spec.name:
        case "fixed":
            return StaticController(FixedPlanner(), reason, models)
        case "linear":
            return StaticController(LinearPlanner.from_budget(spec.budget_tokens), reason, models)
        case "atom":
            atom = AtomPlanner(_atom_settings(spec, limits))
            atom.model = models[0]
            controller = StaticController(atom, reason, models)
            controller.needs_acknowledgement = True  # as with an installed model
            return controller
        case "sglang":
            return StaticController(
                SglangPlanner(_sglang_settings(spec, limits), models[0]), reason, models
            )
        case "makespan":
            makespan = MakespanPlanner(_sizes(spec, limits))
            makespan.install(models)
            return StaticController(makespan, reason, models)


def learning_controller(
    spec: PolicySpec, num_stages: int, limits: SchedulerLimits
) -> ChunkingController:
    """The policy as the server starts it, without a model."""
    sizes = _sizes(spec, limits)
    match spec.name:
        case "fixed" | "linear":
            if limits.batching_policy != "slo":
                return informed_controller(spec, (), limits)
            unplanned = (
                FixedPlanner()
                if spec.name == "fixed"
                else LinearPlanner.from_budget(spec.budget_tokens)
            )
            calibrator = Calibrator(num_stages, sizes)
            return FittedController(
                unplanned, calibrator, sizes, max_model_len=limits.max_model_len
            )
        case "atom":
            settings = _atom_settings(spec, limits)
            return AtomController(
                AtomPlanner(settings), AtomCalibrator(settings, num_stages=num_stages)
            )
        case "sglang" | "makespan":
            planner = (
                MakespanPlanner(sizes)
                if spec.name == "makespan"
                else SglangPlanner(_sglang_settings(spec, limits))
            )
            calibrator = Calibrator(num_stages, sizes)
            return FittedController(planner, calibrator, sizes, max_model_len=limits.max_model_len)


def _smooth(text: str, settings: Sequence[str], default: float) -> float:
    if not settings:
        return default
    try:
        value = float(settings[0])
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 1.0:
        raise ConfigError(
            f"--policy {text}: the smooth factor is {settings[0]!r}, must be a number from 0 to 1"
        )
    return value


def _sizes(spec: PolicySpec, limits: SchedulerLimits) -> PlanLimits:
    return plan_limits(min(spec.budget_tokens, limits.max_model_len))


def _atom_settings(spec: PolicySpec, limits: SchedulerLimits) -> AtomSettings:
    return AtomSettings(
        budget_tokens=spec.budget_tokens,
        smooth_factor=spec.smooth_factor,
        min_chunk_tokens=spec.min_chunk_tokens,
        block_size=limits.block_size,
        max_model_len=limits.max_model_len,
    )


def _sglang_settings(spec: PolicySpec, limits: SchedulerLimits) -> SglangSettings:
    return SglangSettings(
        base_tokens=spec.budget_tokens,
        page_tokens=limits.block_size,
        max_model_len=limits.max_model_len,
        smooth_factor=spec.smooth_factor,
    )
