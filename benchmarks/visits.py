"""A visit: one server started, measured by a plan of workloads, and stopped.

What fails (a server that does not start, a workload that cannot be driven) is recorded in the visit
and does not end a comparison of hours. Runs in the benchmark's process.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop

from benchmarks import report
from benchmarks.peers.process import running
from benchmarks.ratios import Measure
from benchmarks.serve_load import Load, Outcome, run_load
from benchmarks.stream_client import LoadError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.figures import Figures
    from benchmarks.peers.process import Launch

# workload -> the points to run; empty runs all
Plan = dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """What one server did in one round of one setup; plain values, so that JSON keeps it whole."""

    server: str
    setup: str
    round: int
    command: str
    measures: list[Measure]
    failures: list[str]
    workloads: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str, int]:
        """What a resumed run must not repeat."""
        return self.setup, self.server, self.round

    @property
    def is_answered(self) -> bool:
        """Whether the server answered at least one measured request."""
        points = [point for outcome in self.workloads.values() for point in outcome["points"]]
        return any(point["failed"] < point["requests"] for point in points)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What all visits of a comparison share."""

    scale: float
    seed: int
    timeout: float


def visit(
    launch: Launch, setup: str, round_: int, plan: Plan, conditions: Conditions, log: Path
) -> Visit:
    """Start a server, run the plan, stop it."""
    print(f"round {round_}, {setup}, {launch.name}: starting", file=sys.stderr, flush=True)
    outcomes: dict[str, Outcome] = {}
    failures: list[str] = []
    seconds = None
    try:
        with running(launch, log) as server:
            seconds = server.start_seconds
            for workload, points in plan.items():
                load = Load(
                    base_url=launch.base_url,
                    workload=workload,
                    scale=conditions.scale,
                    points=points,
                    seed=conditions.seed,
                    timeout=conditions.timeout,
                    pid=server.pid,
                )
                try:
                    outcomes[workload] = _run(load)
                except LoadError as error:
                    failures.append(f"{workload}: {error}")
    except LoadError as error:
        failures.append(str(error))
    for workload, outcome in outcomes.items():
        failures += [f"{workload}, {line}" for line in report.failures(outcome.figures)]
        print(report.table(outcome.figures), file=sys.stderr)
    for line in failures:
        print(f"{launch.name}: {line}", file=sys.stderr, flush=True)
    return Visit(
        server=launch.name,
        setup=setup,
        round=round_,
        command=shown(launch.command),
        measures=measures_of(seconds, outcomes),
        failures=failures,
        workloads={name: _as_json(outcome) for name, outcome in outcomes.items()},
    )


def _run(load: Load) -> Outcome:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run_load(load))


def measures_of(start_seconds: float | None, outcomes: Mapping[str, Outcome]) -> list[Measure]:
    """All figures by name, for the ratio table."""
    found = [Measure("start to healthy, s", start_seconds, lower_is_better=True)]
    for workload, outcome in outcomes.items():
        for row in outcome.figures:
            found += _of_point(f"{workload}, {row.name}", row, is_single=workload == "single")
    memories = [outcome.memory for outcome in outcomes.values() if outcome.memory]
    if memories:
        idle, peak = memories[0].idle_bytes, max(use.peak_bytes for use in memories)
        found.append(Measure("idle memory, MB", idle / 1e6, lower_is_better=True))
        found.append(Measure("peak memory, MB", peak / 1e6, lower_is_better=True))
    return found


def _of_point(label: str, row: Figures, *, is_single: bool) -> list[Measure]:
    """Latencies of the requests that were answered; rates only where all were."""
    decode = 1.0 / row.tpot_p50 if row.tpot_p50 else None
    whole = row.output_tokens_per_second if row.failed == 0 else None
    rate = (
        Measure(f"{label}: decode tokens/s", decode, lower_is_better=False)
        if is_single
        else Measure(f"{label}: output tokens/s", whole, lower_is_better=False)
    )
    return [
        Measure(f"{label}: TTFT p50, s", row.ttft_p50, lower_is_better=True),
        Measure(f"{label}: ITL p50, s", row.itl_p50, lower_is_better=True),
        Measure(f"{label}: ITL p99, s", row.itl_p99, lower_is_better=True),
        rate,
    ]


def _as_json(outcome: Outcome) -> dict[str, Any]:
    return {
        "points": report.as_json(outcome.figures),
        "dialect": outcome.server["dialect"],
        "client_us_per_chunk": round(outcome.client_us_per_chunk, 1),
        "memory": asdict(outcome.memory) if outcome.memory else None,
    }


def shown(command: Sequence[str]) -> str:
    """The command without the places where this machine keeps things."""
    words = [Path(word).name if word.startswith("/") else word for word in command]
    return report.command_line(words)
