"""The chunk-size policies that are compared, by name, and the cuts that each makes of a prompt.

    fixed-512            every chunk 512 tokens
    atom                 ATOM's recommended recipe, scaled to the prompt range
    atom-1024-1.0        ATOM's rule with another base chunk and smooth factor (the hindsight grid)
    sglang               SGLang's rule with the same base chunk as `atom`
    makespan             the server's default: nothing to choose

Every arm is the server's own planner. ATOM's and SGLang's get the model of the server's fit, as
good as makespan's, so what is compared is the rule and not the calibration. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from atom_lite.chunking.cuts import Span
from atom_lite.chunking.plan_search import Pipeline
from atom_lite.chunking.planner import ChunkRequest, Supply, plan_limits
from atom_lite.chunking.planners.atom import AtomPlanner, AtomSettings
from atom_lite.chunking.planners.fixed import FixedPlanner
from atom_lite.chunking.planners.makespan import MakespanPlanner
from atom_lite.chunking.planners.sglang import SglangPlanner, SglangSettings
from atom_lite.engine.limits import least_chunk_tokens
from benchmarks.stream_client import LoadError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from atom_lite.chunking.latency_model import LatencyModel
    from atom_lite.chunking.planner import ChunkPlanner, PlanLimits

FIXED = "fixed-"
FIXED_ARMS = tuple(f"{FIXED}{size}" for size in (256, 512, 1024, 2048, 4096))
DEFAULT_ARMS = (*FIXED_ARMS, "atom", "sglang", "makespan")
# ATOM's guide: base 32768, smooth 0.75, at least 4096, for prompts up to 131072 tokens.
_RECIPE_BASE_PARTS, _RECIPE_LEAST_PARTS, _RECIPE_SMOOTH = 4, 32, 0.75
GRID_BASES = (256, 384, 512, 768, 1024, 1536, 2048, 4096)
GRID_SMOOTHS = (0.75, 1.0)
_GRID_LEAST_TOKENS = 64
_BLOCK_TOKENS = 16
_SEQUENCE = 0


class Situation(NamedTuple):
    """What the arms are made for.

    Attributes:
        models: fitted, one for each stage.
        longest_tokens: the prompt range's end, which ATOM's recipe is scaled to.
        budget_tokens: the most that makespan may put into a step, the server's own default.
    """

    models: tuple[LatencyModel, ...]
    longest_tokens: int
    budget_tokens: int


def tuned_arms() -> list[str]:
    """The grid that ATOM's rule is tuned over in hindsight."""
    return [f"atom-{base}-{smooth}" for base in GRID_BASES for smooth in GRID_SMOOTHS]


def is_fixed(arm: str) -> bool:
    """Whether an arm is a fixed chunk size."""
    return arm.startswith(FIXED)


def distinct_fixed_arms(arms: Iterable[str], tokens: int) -> dict[str, tuple[int, ...]]:
    """Of the fixed arms, those that cut a prompt of this length differently, and their cuts."""
    by_cut: dict[tuple[int, ...], str] = {}
    for arm in arms:
        if is_fixed(arm):
            planner = planner_of(arm, Situation((), tokens, tokens))
            by_cut.setdefault(cut_prompt(planner, tokens), arm)
    return {arm: sizes for sizes, arm in by_cut.items()}


def planner_of(arm: str, situation: Situation) -> ChunkPlanner:
    """The planner that an arm's name means.

    Raises:
        LoadError: no such arm.
    """
    base = situation.longest_tokens // _RECIPE_BASE_PARTS
    try:
        match arm.split("-"):
            case ["fixed", size]:
                return FixedPlanner(int(size))
            case ["atom"]:
                least = max(1, situation.longest_tokens // _RECIPE_LEAST_PARTS)
                return _atom(situation, base, _RECIPE_SMOOTH, least)
            case ["atom", size, smooth]:
                return _atom(situation, int(size), float(smooth), _GRID_LEAST_TOKENS)
            case ["sglang"]:
                return _sglang(situation, base)
            case ["makespan"]:
                planner = MakespanPlanner(makespan_limits(situation))
                planner.install(situation.models)
                return planner
            case _:
                raise LoadError(f"no such arm: {arm!r}; there are {', '.join(DEFAULT_ARMS)}")
    except ValueError as error:
        raise LoadError(f"no such arm: {arm!r} ({error})") from error


def step_tokens_of(arm: str, situation: Situation) -> int:
    """The step budget of a server with that arm's flags; names as in `planner_of`."""
    match arm.split("-"):
        case ["fixed", size] | ["atom", size, _]:
            return min(int(size), situation.longest_tokens)
        case ["makespan"]:
            return situation.budget_tokens
        case _:
            return situation.longest_tokens // _RECIPE_BASE_PARTS


def makespan_limits(situation: Situation) -> PlanLimits:
    """The sizes that makespan keeps to on a CPU, as the server sets them."""
    return plan_limits(
        min(situation.budget_tokens, situation.longest_tokens),
        floor_tokens=least_chunk_tokens(len(situation.models), on_cpu=True),
    )


def cut_prompt(planner: ChunkPlanner, prompt_tokens: int) -> tuple[int, ...]:
    """The chunks of a prompt that is alone, as the scheduler would ask for them."""
    sizes: list[int] = []
    done = 0
    while done < prompt_tokens:
        planner.begin_step(Supply(1))
        remaining = prompt_tokens - done
        request = ChunkRequest(
            sequence_id=_SEQUENCE,
            prefix_tokens=done,
            remaining_tokens=remaining,
            budget_tokens=remaining,
        )
        sizes.append(planner.next_chunk(request).tokens)
        done += sizes[-1]
    planner.forget(_SEQUENCE)
    return tuple(sizes)


def predicted_seconds(situation: Situation, sizes: Sequence[int]) -> float:
    """What the fitted models say that these cuts take."""
    pipeline = Pipeline(models=situation.models, limits=makespan_limits(situation))
    return pipeline.makespan(Span(0, sum(sizes)), sizes)


def _atom(situation: Situation, base: int, smooth: float, least: int) -> AtomPlanner:
    planner = AtomPlanner(
        AtomSettings(
            budget_tokens=base,
            smooth_factor=smooth,
            min_chunk_tokens=least,
            block_size=_BLOCK_TOKENS,
            max_model_len=situation.longest_tokens,
        )
    )
    planner.model = situation.models[0]
    return planner


def _sglang(situation: Situation, base: int) -> SglangPlanner:
    settings = SglangSettings(
        base_tokens=base,
        page_tokens=_BLOCK_TOKENS,
        max_model_len=situation.longest_tokens,
        smooth_factor=_RECIPE_SMOOTH,
    )
    return SglangPlanner(settings, situation.models[0])
