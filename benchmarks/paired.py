"""Paired ratios with an interval, and a best of a sweep that is not judged on what picked it.

The speed of a shared machine drifts by more than policies differ, so two arms are run one right
after the other and only their ratio counts: the median over the pairs, with a bootstrap 95 %
interval. Pure; randomness is seeded, so a document gives the same figures again.
"""

from __future__ import annotations

import math
import random
import statistics
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

RESAMPLES = 2000
CONFIDENCE = 0.95


class Ratio(NamedTuple):
    """One arm's time over another's, below 1 where the first is faster.

    Attributes:
        median: of the paired ratios.
        low: the 95 % interval's lower end; None under three pairs.
        high: its upper end.
        pairs: how many there were.
    """

    median: float
    low: float | None
    high: float | None
    pairs: int


def paired_ratio(ours: Sequence[float], theirs: Sequence[float], *, seed: int = 0) -> Ratio:
    """Pair i with pair i; what is over on one side does not count."""
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=False)]
    source = random.Random(seed)
    medians = [statistics.median(source.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES)]
    low, high = interval(medians) if len(ratios) > 2 else (None, None)
    return Ratio(statistics.median(ratios), low, high, len(ratios))


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The middle 95 % of resampled values."""
    ordered = sorted(values)
    cut = (1.0 - CONFIDENCE) / 2.0
    last = len(ordered) - 1
    return ordered[math.floor(cut * last)], ordered[math.ceil((1.0 - cut) * last)]


def fastest(times: Mapping[str, Sequence[float]]) -> str:
    """The arm with the least median."""
    return min(times, key=lambda arm: statistics.median(times[arm]))


def describe(ratio: Ratio | None) -> str:
    """For a table: `0.981 [0.970, 0.993]`."""
    if ratio is None:
        return "-"
    if ratio.low is None or ratio.high is None:
        return f"{ratio.median:.3f}"
    return f"{ratio.median:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"
