"""Compare this server with `transformers serve --continuous-batching` in one and the same run.

    python -m benchmarks.compare_transformers --output benchmarks/results/compare-transformers

Same model, same client, same prompts; the servers run one after the other, never together, and
alternate over `--rounds`, because the speed of a shared machine drifts. Writes OUTPUT.json and
OUTPUT.md with the commands, the machine and the ratio of each figure.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import shutil
import sys
import tempfile
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop

from benchmarks import report
from benchmarks.peers import servers
from benchmarks.peers.process import Launch, exit_on_sigterm, running
from benchmarks.ratios import Measure, markdown_table, ratio_rows
from benchmarks.serve_load import Load, Outcome, run_load
from benchmarks.stream_client import LoadError

if TYPE_CHECKING:
    from collections.abc import Sequence

# What is measured, cheapest first; (workload, points).
PLAN: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("single", (128, 1024, 4096)),
    ("shared-prefix", ()),
    ("concurrency", (1, 8, 32)),
)
QUICK_PLAN: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("single", (128, 4096)),
    ("concurrency", (32,)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The command line's flags."""

    model: Path
    output: Path
    dtype: str
    scale: float
    rounds: int
    quick: bool
    timeout: float
    seed: int
    server_args: tuple[str, ...]
    only: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One server, one round: everything that was measured while it ran."""

    server: str
    command: str
    start_seconds: float
    outcomes: dict[str, Outcome]

    def measures(self) -> list[Measure]:
        """All figures by name, for the ratio table."""
        found = [Measure("start to healthy, s", self.start_seconds, lower_is_better=True)]
        for workload, outcome in self.outcomes.items():
            for row in outcome.figures:
                label = f"{workload}, {row.name}"
                found += [
                    Measure(f"{label}: TTFT p50, s", row.ttft_p50, lower_is_better=True),
                    Measure(f"{label}: ITL p50, s", row.itl_p50, lower_is_better=True),
                    Measure(f"{label}: ITL p99, s", row.itl_p99, lower_is_better=True),
                    Measure(
                        f"{label}: output tokens/s",
                        row.output_tokens_per_second if row.failed == 0 else None,
                        lower_is_better=False,
                    ),
                ]
        memories = [outcome.memory for outcome in self.outcomes.values() if outcome.memory]
        if memories:
            idle, peak = memories[0].idle_bytes, max(use.peak_bytes for use in memories)
            found.append(Measure("idle memory, MB", idle / 1e6, lower_is_better=True))
            found.append(Measure("peak memory, MB", peak / 1e6, lower_is_better=True))
        return found


def visit(launch: Launch, comparison: Comparison, log: Path) -> Visit:
    """Start a server, measure the whole plan, stop it."""
    print(f"{launch.name}: starting", file=sys.stderr)
    outcomes = {}
    with running(launch, log) as server:
        for workload, points in QUICK_PLAN if comparison.quick else PLAN:
            load = Load(
                base_url=launch.base_url,
                workload=workload,
                scale=comparison.scale,
                points=points,
                seed=comparison.seed,
                timeout=comparison.timeout,
                pid=server.pid,
            )
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                outcomes[workload] = runner.run(run_load(load))
            print(report.table(outcomes[workload].figures), file=sys.stderr)
            for line in report.failures(outcomes[workload].figures):
                print(line, file=sys.stderr)
        return Visit(
            server=launch.name,
            command=_shown(launch.command),
            start_seconds=server.start_seconds,
            outcomes=outcomes,
        )


def _shown(command: Sequence[str]) -> str:
    """The command without the places where this machine keeps things."""
    words = [Path(word).name if word.startswith("/") else word for word in command]
    return report.command_line(words)


def compare(comparison: Comparison) -> list[Visit]:
    """All rounds, the two servers in turn."""
    peer_model = servers.exported_model(comparison.model, servers.cache_directory())
    logs = Path(tempfile.mkdtemp(prefix="atom_lite-compare-"))
    visits = []
    for round_ in range(comparison.rounds):
        launches = (
            servers.transformers_serve(peer_model, comparison.dtype),
            servers.atom_lite(comparison.model, comparison.dtype, comparison.server_args),
        )
        for index, launch in enumerate(launches):
            if comparison.only in (None, launch.name.split()[0]):
                visits.append(visit(launch, comparison, logs / f"{round_}-{index}.log"))
    shutil.rmtree(logs)  # kept when a visit failed: its error names the log's tail
    return visits


def document(
    comparison: Comparison, visits: Sequence[Visit], argv: Sequence[str]
) -> dict[str, Any]:
    """The comparison as JSON."""
    return {
        "command": report.command_line(argv),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": report.machine(),
        "model": comparison.model.name,
        "dtype": comparison.dtype,
        "scale": comparison.scale,
        "seed": comparison.seed,
        "visits": [_visit_json(visit) for visit in visits],
        "ratios": [asdict(row) for row in _rows(visits)],
    }


def _visit_json(visit: Visit) -> dict[str, Any]:
    return {
        "server": visit.server,
        "command": visit.command,
        "start_seconds": round(visit.start_seconds, 2),
        "workloads": {
            workload: {
                "points": report.as_json(outcome.figures),
                "dialect": outcome.server["dialect"],
                "client_us_per_chunk": round(outcome.client_us_per_chunk, 1),
                "memory": asdict(outcome.memory) if outcome.memory else None,
            }
            for workload, outcome in visit.outcomes.items()
        },
    }


def _rows(visits: Sequence[Visit]) -> list[Any]:
    ours = [visit.measures() for visit in visits if visit.server == "atom_lite"]
    peers = [visit.measures() for visit in visits if visit.server != "atom_lite"]
    return ratio_rows(ours, peers)


def markdown(document: dict[str, Any], visits: Sequence[Visit]) -> str:
    """The comparison as a page to read."""
    machine = document["machine"]
    commands = dict.fromkeys(visit.command for visit in visits)
    lines = [
        "# atom_lite and transformers serve, same model, same client, same run",
        "",
        f"- Machine: {machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB",
        f"- Software: Python {machine['python']}, {machine['versions']}",
        f"- Model: {document['model']} as {document['dtype']}",
        f"- Prompts: seed {document['seed']}, scale {document['scale']}",
        f"- Run: `{document['command']}` at {document['time']}",
        *(f"- Server: `{command}`" for command in commands),
        "",
        "A ratio above 1 means that atom_lite is better: faster, shorter or smaller. With several",
        "rounds, medians of the values and the median of the paired ratios.",
        "",
        markdown_table(_rows(visits), "transformers serve"),
        "",
    ]
    return "\n".join(lines)


def parse_comparison(argv: Sequence[str]) -> Comparison:
    """Flags to a comparison."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--model", type=Path, help="GGUF file; default: SmolLM2's package")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("benchmarks/results/compare-transformers"),
        help="path without suffix; .json and .md are written",
    )
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--scale", type=float, default=1.0, help="times as many requests")
    parser.add_argument("--rounds", type=int, default=1, help="visits to each server, in turn")
    parser.add_argument("--quick", action="store_true", help="fewer points")
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds of each workload")
    parser.add_argument("--seed", type=int, help="of the prompts; default: a fresh one")
    parser.add_argument("--only", choices=("atom_lite", "transformers"), help="one server alone")
    parser.add_argument(
        "server_args", nargs="*", help="after --: further flags for atom_lite.serve"
    )
    options = vars(parser.parse_args(argv))
    options["seed"] = secrets.randbits(32) if options["seed"] is None else options["seed"]
    options["model"] = (options["model"] or servers.default_gguf()).resolve()
    return Comparison(**options | {"server_args": tuple(options["server_args"])})


def main() -> None:
    """The command line."""
    exit_on_sigterm()
    try:
        comparison = parse_comparison(sys.argv[1:])
        visits = compare(comparison)
    except LoadError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    result = document(comparison, visits, sys.argv)
    page = markdown(result, visits)
    report.write_json(comparison.output.with_suffix(".json"), result)
    comparison.output.with_suffix(".md").write_text(page)
    print(page)


if __name__ == "__main__":
    main()
