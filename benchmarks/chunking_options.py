"""The command line of `dynamic_chunking`."""

from __future__ import annotations

import argparse
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from atom_lite.engine.limits import CPU_BUDGETS
from benchmarks.chunk_arms import DEFAULT_ARMS, FIXED_ARMS, is_fixed
from benchmarks.chunking_load import LEVELS
from benchmarks.peers.checkpoints import default_gguf
from benchmarks.stream_client import LoadError

if TYPE_CHECKING:
    from collections.abc import Sequence

MODES = ("pairs", "replay", "http", "load", "all")
LENGTHS = (1024, 2048, 4096, 8192)
STAGES = (2, 4, 8)
# What makes a run end in about three minutes on two quiet cores, and still touch every part of it.
QUICK = {
    "lengths": (512, 1024),
    "arms": ("fixed-128", "fixed-256", "fixed-512", "atom", "sglang", "makespan"),
    "rounds": 2,
    "replay_rounds": 2,
    "stages": (2, 4),
    "visits": 1,
    "load_rounds": 1,
    "levels": ((4, 512),),
}


class Options(NamedTuple):
    """The flags, defaults filled in."""

    mode: str
    model: Path
    dtype: str
    load_format: str
    output: Path
    resume: bool
    lengths: tuple[int, ...]
    arms: tuple[str, ...]
    stages: tuple[int, ...]
    rounds: int
    replay_rounds: int
    replay_clock: str
    load_rounds: int
    levels: tuple[tuple[int, int], ...]
    visits: int
    planner_budget: int
    budget_seconds: float
    seed: int
    server_args: tuple[str, ...]


def parse_options(argv: Sequence[str]) -> Options:
    """Flags to options.

    Raises:
        LoadError: flags that do not go together, or no default model.
    """
    flags = vars(_parser().parse_args(argv))
    quick, minutes = flags.pop("quick"), flags.pop("budget_minutes")
    flags["levels"] = LEVELS
    for name, value in QUICK.items() if quick else ():
        flags[name] = value
    if not flags["arms"] or "makespan" not in flags["arms"]:
        raise LoadError("--arms must hold makespan and at least one fixed arm")
    if not any(is_fixed(arm) for arm in flags["arms"]):
        raise LoadError(f"--arms holds no fixed arm; there are {', '.join(FIXED_ARMS)}")
    flags["seed"] = secrets.randbits(32) if flags["seed"] is None else flags["seed"]
    flags["model"] = (flags["model"] or default_gguf()).resolve()
    flags["server_args"] = tuple(flags["server_args"])
    return Options(budget_seconds=60.0 * minutes, **flags)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Compare chunk-size policies over stages.")
    add = parser.add_argument
    add("--mode", choices=MODES, default="all", help="which part to run")
    add("--model", type=Path, help="GGUF file or directory; default: SmolLM2's package")
    add("--dtype", choices=("float32", "bfloat16"), default="float32")
    add("--load-format", choices=("auto", "dummy"), default="auto")
    add(
        "--output",
        type=Path,
        default=Path("benchmarks/results/dynamic-chunking"),
        help="path without suffix; .json, .md, .png and .trace.json are written",
    )
    add("--resume", action="store_true", help="go on with OUTPUT.json")
    add("--quick", action="store_true", help="every part, small: about three minutes")
    add("--lengths", type=_numbers, default=LENGTHS, help="prompt tokens, such as 1024,8192")
    add("--arms", type=_words, default=DEFAULT_ARMS, help="policies, such as fixed-256,makespan")
    add("--stages", type=_numbers, default=STAGES, help="replayed pipelines, such as 2,4,8")
    add("--rounds", type=int, default=9, help="pairs at each length")
    add("--replay-rounds", type=int, default=4, help="measurements of each contender's chunks")
    add(
        "--replay-clock",
        choices=("wall", "cpu"),
        default="wall",
        help="cpu: the stage thread's own time, for a machine that others use too",
    )
    add("--load-rounds", type=int, default=9, help="pairs at each concurrency")
    add("--visits", type=int, default=2, help="visits to each server, in turn")
    add(
        "--planner-budget",
        type=int,
        default=CPU_BUDGETS[1],
        help="makespan's largest chunk; default: the server's own",
    )
    add("--budget-minutes", type=float, default=60.0, help="no part begins a round after this")
    add("--seed", type=int, help="of prompts and orders; default: a fresh one")
    add("server_args", nargs="*", help="after --: further flags for atom_lite.serve")
    return parser


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(","))


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))
