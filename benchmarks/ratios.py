"""Figures of two servers side by side: ratios oriented so that above 1 is always better for us.

Only figures of the same round are compared, because the speed of a shared machine drifts. Pure.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.paired import Ratio, paired_ratio

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure of one visit; None where it could not be measured."""

    name: str
    value: float | None
    lower_is_better: bool


Rounds = dict[int, dict[str, Measure]]  # round -> the figures of one server by name


def ratio_over(ours: Rounds, theirs: Rounds, name: str) -> Ratio | None:
    """How many times better we are at a figure, over the rounds in which both have it."""
    mine, others = [], []
    for round_ in sorted(ours.keys() & theirs.keys()):
        a, b = ours[round_].get(name), theirs[round_].get(name)
        if a is None or b is None or not a.value or not b.value:
            continue
        better, worse = (b.value, a.value) if a.lower_is_better else (a.value, b.value)
        mine.append(better)
        others.append(worse)
    return paired_ratio(mine, others) if mine else None


def median_of(rounds: Rounds, name: str) -> float | None:
    """The median of a figure over the rounds that have it."""
    values = [m.value for figures in rounds.values() if (m := figures.get(name)) is not None]
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def best_peer(peers: Mapping[str, Rounds], name: str) -> str | None:
    """The peer with the best median of a figure; None where no peer has it."""
    lower, medians = True, {}
    for peer, rounds in peers.items():
        median = median_of(rounds, name)
        if median is not None:
            medians[peer] = median
            lower = next(f[name].lower_is_better for f in rounds.values() if name in f)
    if not medians:
        return None
    return (min if lower else max)(medians, key=lambda peer: medians[peer])


def names_of(servers: Sequence[Rounds]) -> list[str]:
    """The figures that any server has, in the order in which they were measured."""
    return list(dict.fromkeys(name for rounds in servers for f in rounds.values() for name in f))
