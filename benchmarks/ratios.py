"""Paired ratios between two servers' figures, oriented so that above 1 is always better.

Pure.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure of one visit; None where it could not be measured."""

    name: str
    value: float | None
    lower_is_better: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioRow:
    """A figure of both servers: medians over the rounds, and the median of the paired ratios."""

    name: str
    ours: float | None
    theirs: float | None
    ratio: float | None
    rounds: int


def ratio_rows(
    ours: Sequence[Sequence[Measure]], theirs: Sequence[Sequence[Measure]]
) -> list[RatioRow]:
    """One row for each figure that either side has; visit i is paired with visit i."""
    names = dict.fromkeys(measure.name for visit in [*ours, *theirs] for measure in visit)
    by_name = [{m.name: m for m in visit} for visit in ours]
    peer_by_name = [{m.name: m for m in visit} for visit in theirs]
    rows = []
    for name in names:
        mine = [visit.get(name) for visit in by_name]
        peers = [visit.get(name) for visit in peer_by_name]
        pairs = [_ratio(a, b) for a, b in zip(mine, peers, strict=False)]
        known = [ratio for ratio in pairs if ratio is not None]
        rows.append(
            RatioRow(
                name=name,
                ours=_median(mine),
                theirs=_median(peers),
                ratio=statistics.median(known) if known else None,
                rounds=len(known),
            )
        )
    return rows


def _ratio(ours: Measure | None, theirs: Measure | None) -> float | None:
    if ours is None or theirs is None or not ours.value or not theirs.value:
        return None
    return theirs.value / ours.value if ours.lower_is_better else ours.value / theirs.value


def _median(measures: Sequence[Measure | None]) -> float | None:
    values = [m.value for m in measures if m is not None and m.value is not None]
    return statistics.median(values) if values else None


def markdown_table(rows: Sequence[RatioRow], peer: str) -> str:
    """The rows as a Markdown table; a dash where nothing was measured."""
    lines = [f"| | atom_lite | {peer} | ratio |", "|---|---:|---:|---:|"]
    lines += [
        f"| {row.name} | {_cell(row.ours)} | {_cell(row.theirs)} | {_cell(row.ratio)} |"
        for row in rows
    ]
    return "\n".join(lines)


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
