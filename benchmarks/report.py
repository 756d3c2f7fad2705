"""What a run says in the end: a table to read and a JSON document to keep.

The JSON holds everything that a later reader needs to judge a figure: the command, the machine,
the server's dialect, the seed, every figure. Pure but for reading the machine's description.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import secrets
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.figures import Figures
    from benchmarks.memory import MemoryUse

_SECRET_FLAGS = ("--api-key",)
_PACKAGES = ("atom-lite", "torch", "transformers")
_COLUMNS = (
    ("requests", 24),
    ("ok", 4),
    ("prompt", 7),
    ("TTFT p50", 9),
    ("p99 s", 8),
    ("ITL p50", 8),
    ("p99", 8),
    ("max ms", 8),
    ("TPOT ms", 8),
    ("out tok/s", 10),
)
_LEVEL_COLUMNS = (
    ("requests", 24),
    ("goodput/s", 9),
    ("fluidity docs", 13),
    ("paper", 6),
    ("fluid docs", 10),
    ("paper", 6),
    ("late gaps", 9),
)


def machine() -> dict[str, Any]:
    """The machine and the client's software; nothing that names a person or host."""
    return {
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in _PACKAGES},
    }


def cpu_model() -> str:
    """The processor's name with the vector instructions that decide its speed here."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or "unknown"
    pairs = (line.partition(":") for line in text.splitlines())
    fields = {key.strip(): value.strip() for key, _, value in pairs}
    flags = set(fields.get("flags", "").split())
    wide = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in flags]
    family = "/".join(fields.get(key, "?") for key in ("cpu family", "model"))
    return f"{fields.get('model name', 'unknown')} (family {family}; {' '.join(wide)})"


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def command_line(argv: Sequence[str]) -> str:
    """The command for the record, with keys blanked out and the program's bare name."""
    words = [Path(argv[0]).name]
    hide_next = False
    for word in argv[1:]:
        flag, equals, _ = word.partition("=")
        if hide_next:
            words.append("***")
        elif equals and flag in _SECRET_FLAGS:
            words.append(f"{flag}=***")
        else:
            words.append(word)
        hide_next = not equals and word in _SECRET_FLAGS
    return shlex.join(words)


def table(figures: Sequence[Figures]) -> str:
    """The figures as aligned text; a dash where nothing was measured."""
    header = "  ".join(f"{title:>{width}}" for title, width in _COLUMNS)
    return "\n".join([header, *(_row(row) for row in figures)])


def _row(row: Figures) -> str:
    cells = (
        row.name,
        str(row.requests - row.failed),
        number(row.prompt_tokens_mean, 0),
        number(row.ttft_p50, 3),
        number(row.ttft_p99, 3),
        milliseconds(row.itl_p50),
        milliseconds(row.itl_p99),
        milliseconds(row.itl_max),
        milliseconds(row.tpot_p50),
        number(row.output_tokens_per_second, 1),
    )
    return "  ".join(f"{cell:>{width}}" for cell, (_, width) in zip(cells, _COLUMNS, strict=True))


def levels_table(figures: Sequence[Figures]) -> str:
    """Goodput and fluidity, one row for each point, as aligned text."""
    header = "  ".join(f"{title:>{width}}" for title, width in _LEVEL_COLUMNS)
    return "\n".join([header, *(_levels_row(row) for row in figures)])


def _levels_row(row: Figures) -> str:
    levels = row.levels
    cells = [row.name, *["-"] * (len(_LEVEL_COLUMNS) - 1)]
    if levels is not None:
        cells[1:] = [
            f"{levels.goodput_per_second:.3f}",
            f"{levels.fluidity_docs:.3f}",
            f"{levels.fluidity_paper:.3f}",
            f"{levels.fluid_share_docs:.1%}",
            f"{levels.fluid_share_paper:.1%}",
            f"{levels.late_gap_share:.1%}",
        ]
    pairs = zip(cells, _LEVEL_COLUMNS, strict=True)
    return "  ".join(f"{cell:>{width}}" for cell, (_, width) in pairs)


def number(value: float | None, digits: int) -> str:
    """A number or a dash."""
    return "-" if value is None else f"{value:.{digits}f}"


def milliseconds(seconds: float | None) -> str:
    """Seconds as milliseconds, or a dash."""
    return "-" if seconds is None else f"{seconds * 1000:.1f}"


def memory_line(use: MemoryUse) -> str:
    """One line about memory, in MB."""
    idle, peak, rss = (
        round(value / 1e6) for value in (use.idle_bytes, use.peak_bytes, use.peak_rss_bytes)
    )
    return (
        f"memory of {use.processes} server processes: idle {idle} MB, peak {peak} MB "
        f"(sum of each one's peak since its start: {rss} MB)"
    )


def failures(figures: Sequence[Figures]) -> list[str]:
    """One line for each kind of failure."""
    return [
        f"{row.name}: {count} failed: {error}"
        for row in figures
        for error, count in row.errors.items()
    ]


def as_json(figures: Sequence[Figures]) -> list[dict[str, Any]]:
    """Figures as plain JSON values, rounded to what a clock can tell."""
    return [
        {
            key: round(value, 6) if isinstance(value, float) else value
            for key, value in asdict(row).items()
        }
        for row in figures
    ]


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Write the document whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(path.suffix + ".partial")
    partial.write_text(json.dumps(document, indent=2) + "\n")
    partial.replace(path)


def write_pages(output: Path, document: dict[str, Any], page: str) -> None:
    """Write OUTPUT.json, and OUTPUT.md beside it."""
    write_json(output.with_suffix(".json"), document)
    output.with_suffix(".md").write_text(page)


def resumed_seed(path: Path, *, resume: bool) -> int:
    """The seed of the document that is gone on with, else a fresh one."""
    if resume and path.exists():
        return int(json.loads(path.read_bytes())["seed"])
    return secrets.randbits(31)
