"""The arms of the interference benchmark: a policy each, with its switches and budget, as flags.

    stall-free-256    Sarathi-Serve's rule with that budget; the sweep of static budgets
    hybrid-only       mixed steps without chunks (Orca's rule, blocks packed as elsewhere)
    chunks-only       chunks without mixed steps: decodes and chunks take turns
    slo-3x, slo-6x    steps sized by the latency model, for gaps of so many decode-only ones
    pp2-...           over two stages

Pure.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from benchmarks.stream_client import LoadError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BASE = "stall-free-256"
BUDGETS = (64, 128, 256, 512, 1024, 2048)
BASE_BUDGET = 256
FACTORS = (3, 6)  # an objective is so many decode-only gaps
SLO = "slo-"
PIPELINE = "pp2-"
POLICIES: dict[str, tuple[str, ...]] = {
    "request-level": ("--batching-policy", "request-level"),
    "orca": ("--batching-policy", "orca"),
    "prefill-first": ("--batching-policy", "prefill-first"),
    "hybrid-only": ("--batching-policy", "orca", "--capacity-policy", "max-utilization"),
    "chunks-only": (
        *("--batching-policy", "stall-free", "--no-enable-hybrid-batching"),
        *("--max-num-batched-tokens", str(BASE_BUDGET)),
    ),
}
ALL_ARMS = (
    *(f"stall-free-{budget}" for budget in BUDGETS),
    "unified-256",
    "prefill-first",
    "orca",
    "request-level",
    "hybrid-only",
    "chunks-only",
    *(f"{SLO}{factor}x" for factor in FACTORS),
    f"{PIPELINE}stall-free-256",
    f"{PIPELINE}prefill-first",
)
QUICK_ARMS = (
    *(BASE, "stall-free-512", "prefill-first", "orca", "unified-256", "chunks-only"),
    *(f"{SLO}{factor}x" for factor in FACTORS),
)


def objective_seconds(factor: int, decode_gap_seconds: float) -> float:
    """A TBT objective, from the median gap of streams alone."""
    return factor * decode_gap_seconds


def flags_of(arm: str, objectives: Mapping[int, float]) -> tuple[str, ...]:
    """An arm's flags for the server.

    Args:
        arm: its name.
        objectives: factor -> TBT objective in seconds.

    Raises:
        LoadError: there is no such arm.
    """
    if arm.startswith(PIPELINE):
        return ("--pipeline-parallel-size", "2", *flags_of(arm.removeprefix(PIPELINE), objectives))
    if arm in POLICIES:
        return POLICIES[arm]
    match = re.fullmatch(r"(stall-free|unified)-(\d+)", arm)
    if match is not None:
        return ("--batching-policy", match[1], "--max-num-batched-tokens", match[2])
    match = re.fullmatch(rf"{SLO}(\d+)x", arm)
    if match is not None and int(match[1]) in objectives:
        milliseconds = 1e3 * objectives[int(match[1])]
        return ("--batching-policy", "slo", "--tbt-slo-ms", f"{milliseconds:.1f}")
    raise LoadError(f"--arms: there is no {arm!r}, only {', '.join(ALL_ARMS)}")


def check_arms(arms: Sequence[str]) -> None:
    """Refuse unknown arms, and a run without the one that all are compared with.

    Raises:
        LoadError: the command line prints it.
    """
    for arm in arms:
        flags_of(arm, dict.fromkeys(FACTORS, 1.0))
    if BASE not in arms:
        raise LoadError(f"--arms must hold {BASE}, which gives the objectives and every ratio")


def budget_of(arm: str) -> int | None:
    """The static budget of a stall-free arm on one stage; None for any other."""
    match = re.fullmatch(r"stall-free-(\d+)", arm)
    return int(match[1]) if match is not None else None
