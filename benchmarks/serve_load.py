"""Load any OpenAI-compatible server and report TTFT, ITL, TPOT and output tokens per second.

With `--tbt-slo-ms` also goodput and fluidity by these objectives (service_levels.py).

    python -m benchmarks.serve_load --base-url http://127.0.0.1:8000 --workload single

Needs no more of the server than a streaming /v1/chat/completions (or /v1/completions with
`--endpoint completions`). workloads.py says what each load shape is. Exit code 0: all requests
were answered; 1: some failed; 2: the server or the flags cannot be used.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
import time
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import uvloop
from tqdm import tqdm

from benchmarks import report
from benchmarks.figures import Figures, figures_of
from benchmarks.memory import MemoryUse, MemoryWatch
from benchmarks.service_levels import Objectives, levels_of
from benchmarks.stream_client import LoadError, StreamClient
from benchmarks.target import PATHS, Target, connect
from benchmarks.workload_list import WORKLOADS
from benchmarks.workloads import Point, Run

if TYPE_CHECKING:
    from collections.abc import Sequence

WARM_UP_PROMPT_TOKENS = 256
WARM_UP_OUTPUT_TOKENS = 8
_OBJECTIVES = ("tbt_slo_ms", "ttft_slo_ms", "ttft_slo_ms_per_token")
DEFAULT_TTFT_MS = 300.0  # Etalon's slack of a first token


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What to run against a server; the command line's flags."""

    base_url: str
    workload: str
    model: str | None = None
    endpoint: str = "chat"
    api_key: str | None = None
    scale: float = 1.0
    points: tuple[int, ...] = ()
    seed: int = 0
    timeout: float = 1800.0
    pid: int | None = None
    quiet: bool = False
    objectives: Objectives | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a load brought."""

    figures: list[Figures]
    points: list[Point]
    server: dict[str, Any]
    client_us_per_chunk: float
    memory: MemoryUse | None


async def run_load(load: Load) -> Outcome:
    """Connect, warm up, drive the workload, sum up.

    Raises:
        LoadError: the server cannot be measured; `main` catches it.
    """
    target = await connect(StreamClient(load.base_url, load.api_key), load.model, load.endpoint)
    deadline = time.perf_counter() + load.timeout
    await _warm_up(target, load.seed, deadline)
    run = Run(
        target=target, seed=load.seed, deadline=deadline, scale=load.scale, points=load.points
    )
    watch = _watch(load.pid)
    points, cpu_seconds = await _drive(load, run)
    records = {id(record): record for point in points for record in point.records}
    chunks = sum(record.num_chunks for record in records.values())
    return Outcome(
        figures=[_figures(point, load.objectives) for point in points],
        points=points,
        server=target.describe(),
        client_us_per_chunk=cpu_seconds / max(1, chunks) * 1e6,
        memory=watch.stop() if watch else None,
    )


def _figures(point: Point, objectives: Objectives | None) -> Figures:
    levels = None if objectives is None else levels_of(point, objectives)
    return replace(figures_of(point), levels=levels)


async def _drive(load: Load, run: Run) -> tuple[list[Point], float]:
    """The points and the CPU seconds that this thread spent, under a progress bar."""
    workload = WORKLOADS[load.workload]
    hidden = True if load.quiet else None  # None: hidden unless stderr is a terminal
    with tqdm(total=workload.count(run), desc=load.workload, unit="req", disable=hidden) as bar:
        cpu_before = time.thread_time()
        points = await workload.drive(replace(run, progress=bar.update))
        return points, time.thread_time() - cpu_before


async def _warm_up(target: Target, seed: int, deadline: float) -> None:
    prompt = await target.prompt_maker(seed).make("warm-up", WARM_UP_PROMPT_TOKENS)
    record = await target.stream(prompt, WARM_UP_OUTPUT_TOKENS, deadline)
    if record.error is not None:
        raise LoadError(f"the warm-up request failed: {record.error}")


def _watch(pid: int | None) -> MemoryWatch | None:
    if pid is None:
        return None
    try:
        watch = MemoryWatch(pid)
    except psutil.NoSuchProcess as error:
        raise LoadError(f"--pid {pid}: there is no such process") from error
    watch.start()
    return watch


def document(load: Load, outcome: Outcome, argv: Sequence[str]) -> dict[str, Any]:
    """The run as a JSON document."""
    return {
        "command": report.command_line(argv),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": report.machine(),
        "server": outcome.server,
        "workload": load.workload,
        "scale": load.scale,
        "seed": load.seed,
        "objectives": asdict(load.objectives) if load.objectives else None,
        "points": report.as_json(outcome.figures),
        "client_us_per_chunk": round(outcome.client_us_per_chunk, 1),
        "memory": asdict(outcome.memory) if outcome.memory else None,
    }


def print_outcome(load: Load, outcome: Outcome) -> None:
    """The table and what to know about it."""
    dialect = outcome.server["dialect"]
    print(f"{outcome.server['model']} at {load.base_url}, {load.workload}, seed {load.seed}")
    print(report.table(outcome.figures))
    if load.objectives is not None:
        print(report.levels_table(outcome.figures))
    if outcome.memory is not None:
        print(report.memory_line(outcome.memory))
    print(f"client: {outcome.client_us_per_chunk:.0f} us of CPU a chunk")
    if not dialect["counts_usage"]:
        print("note: the server sends no usage; chunks were counted as tokens")
    if not dialect["fixed_length"]:
        print("note: the server may stop early (it refuses ignore_eos); output lengths vary")
    for line in report.failures(outcome.figures):
        print(line, file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--base-url", required=True, help="http://host:port of the server")
    parser.add_argument("--workload", required=True, choices=sorted(WORKLOADS))
    parser.add_argument("--model", help="default: the first one that /v1/models lists")
    parser.add_argument("--endpoint", choices=sorted(PATHS), default="chat")
    parser.add_argument("--api-key", help="sent as a Bearer token")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.add_argument(
        "--scale", type=float, default=1.0, metavar="F", help="times as many requests (default 1)"
    )
    parser.add_argument(
        "--points",
        type=_integers,
        default=(),
        metavar="N,N",
        help="only these prompt lengths (single) or numbers at once (concurrency); another length "
        "of the long prompts (interference)",
    )
    parser.add_argument("--seed", type=int, help="of the prompts; default: a fresh one, printed")
    parser.add_argument(
        "--timeout", type=float, default=1800.0, metavar="SECONDS", help="of the whole workload"
    )
    parser.add_argument("--tbt-slo-ms", type=float, help="objective of gaps; turns fluidity on")
    parser.add_argument(
        "--ttft-slo-ms", type=float, default=DEFAULT_TTFT_MS, help="objective of first tokens"
    )
    parser.add_argument(
        "--ttft-slo-ms-per-token", type=float, default=0.0, help="on top of it, for long prompts"
    )
    parser.add_argument("--pid", type=int, help="server process whose tree's memory is reported")
    return parser


def _integers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(","))


def parse_load(argv: Sequence[str]) -> tuple[Load, Path | None]:
    """Flags to a load and the file for its JSON."""
    options = vars(_parser().parse_args(argv))
    json_path: Path | None = options.pop("json")
    if options["seed"] is None:
        options["seed"] = secrets.randbits(32)
    if options["scale"] <= 0:
        raise LoadError(f"--scale must be above 0, got {options['scale']}")
    options["objectives"] = _objectives(options)
    return Load(**options), json_path


def _objectives(options: dict[str, Any]) -> Objectives | None:
    """What the flags promise; takes them out of `options`."""
    gap, first, per_token = (options.pop(name) for name in _OBJECTIVES)
    for name, value in zip(_OBJECTIVES, (gap, first, per_token), strict=True):
        if value is not None and not 0 <= value < float("inf"):
            raise LoadError(f"--{name.replace('_', '-')} must be finite and not below 0: {value}")
    if gap is None:
        return None
    if gap == 0:
        raise LoadError("--tbt-slo-ms must be above 0")
    return Objectives(
        tbt_seconds=gap / 1e3, ttft_seconds=first / 1e3, ttft_seconds_per_token=per_token / 1e3
    )


def main() -> None:
    """The command line."""
    try:
        load, json_path = parse_load(sys.argv[1:])
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            outcome = runner.run(run_load(load))
    except LoadError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    print_outcome(load, outcome)
    if json_path is not None:
        report.write_json(json_path, document(load, outcome, sys.argv))
    sys.exit(1 if any(row.failed for row in outcome.figures) else 0)


if __name__ == "__main__":
    main()
