"""The table of scheduling claims: one document that two commands fill.

    python -m benchmarks.scheduling_claims    rows that the simulator answers
    python -m benchmarks.interference         rows that need the engine

Each row is replaced by its name, so either may be run again. Pure but for the two files.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from benchmarks import report
from benchmarks.stream_client import LoadError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

Verdict = Literal["holds", "does not hold here"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One claim of the field, and what was found.

    Attributes:
        name: of the row; the same in every run.
        where: `engine` or `simulator`.
        claim: in words, with its source.
        found: the figures, ratios among them.
        verdict: whether it holds.
        because: why, or on what condition.
        command: that found it.
    """

    name: str
    where: Literal["engine", "simulator"]
    claim: str
    found: str
    verdict: Verdict
    because: str
    command: str


def judged(*, holds: bool, because: str, otherwise: str) -> dict[str, Any]:
    """The two fields that say whether a claim holds, and why it does or does not."""
    verdict: Verdict = "holds" if holds else "does not hold here"
    return {"verdict": verdict, "because": because if holds else otherwise}


def merge_claims(path: Path, claims: Iterable[Claim]) -> str:
    """Replace these rows in `path`.json, keep the others, and write `path`.md; the table.

    Raises:
        LoadError: the file is there and is none of ours.
    """
    file = path.with_suffix(".json")
    rows: dict[str, dict[str, Any]] = {}
    if file.exists():
        try:
            rows = {row["name"]: row for row in json.loads(file.read_text())["claims"]}
        except (ValueError, KeyError, TypeError) as error:
            raise LoadError(f"{file.name} is no table of claims: {error!r}") from error
    machine = report.machine()
    rows |= {claim.name: asdict(claim) | {"machine": machine["cpu"]} for claim in claims}
    ordered = [rows[name] for name in sorted(rows)]
    text = markdown(ordered)
    report.write_pages(path, {"claims": ordered}, text)
    return text


def markdown(rows: Iterable[dict[str, Any]]) -> str:
    """All rows as one table."""
    columns = ("claim", "where", "found", "verdict", "command")
    lines = [
        "# What the field says of its schedulers, and what was found here",
        "",
        "Engine rows are of a small model on a CPU; the simulator runs the real scheduler over",
        "latency models. Written by `python -m benchmarks.scheduling_claims` and",
        "`python -m benchmarks.interference`.",
        "",
        f"| {' | '.join(columns)} |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        verdict = (
            f"{row['verdict']}, because {row['because']}" if row["because"] else row["verdict"]
        )
        cells = (row["claim"], row["where"], row["found"], verdict, f"`{row['command']}`")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
