"""The exact optimum over all cuts of a prompt: the oracle for the chunk-size search.

A dynamic program over aligned cut positions finds the least `sum(t)` with no chunk above a peak M;
over M the least `sum + w*M` is found by branch and bound on the sorted chunk times, so nothing is
sampled. Quadratic in the number of positions: for tests only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atom_lite.chunking.latency_model import LatencyModel
    from atom_lite.chunking.planner import PlanLimits

Array = NDArray[np.float64]


def exact_objective(
    model: LatencyModel,
    *,
    prompt_tokens: int,
    peak_weight: float,
    align_tokens: int,
    most_tokens: int,
    prefix_tokens: int = 0,
    least_tokens: int = 1,
) -> float:
    """The least `sum(t) + peak_weight * max(t)` over all cuts at aligned positions."""
    positions = prefix_tokens + np.arange(0, prompt_tokens + 1, align_tokens, dtype=np.float64)
    if positions[-1] != prefix_tokens + prompt_tokens:
        positions = np.append(positions, float(prefix_tokens + prompt_tokens))
    start, end = positions[:, None], positions[None, :]
    new = end - start
    times = (
        model.constant_seconds
        + model.prefix_seconds_per_token * start
        + model.linear_seconds_per_token * new
        + model.attention_seconds_per_area * (2.0 * start * new + new * new)
    )
    times[(new < least_tokens) | (new > most_tokens)] = np.inf
    peaks = np.unique(times[np.isfinite(times)])
    return _least(times, peaks, peak_weight)


def _least(times: Array, peaks: Array, weight: float) -> float:
    """Branch and bound over the peak: a smaller allowed peak never lowers the sum."""
    best = np.inf
    cache: dict[int, float] = {}

    def total(index: int) -> float:
        if index not in cache:
            cache[index] = _least_sum(times, peaks[index])
        return cache[index]

    intervals = [(0, len(peaks) - 1)]
    while intervals:
        low, high = intervals.pop()
        best = min(best, total(high) + weight * peaks[high], total(low) + weight * peaks[low])
        # Within (low, high) the sum is at least the loosest one, the peak at least the next.
        if high - low < 2 or total(high) + weight * peaks[low + 1] >= best * (1.0 - 1e-6):
            continue
        middle = (low + high) // 2
        intervals += [(low, middle), (middle, high)]
    return float(best)


def _least_sum(times: Array, peak: float) -> float:
    count = len(times)
    allowed = np.where(times <= peak, times, np.inf)
    least = np.full(count, np.inf)
    least[0] = 0.0
    for end in range(1, count):
        least[end] = np.min(least[:end] + allowed[:end, end])
    return float(least[-1])


def all_cuts(tokens: int, limits: PlanLimits) -> Iterator[list[int]]:
    """Every way to cut a prompt: for short ones only, there are thousands of 1000 tokens."""
    if tokens <= limits.most:
        yield [tokens]
    for size in range(limits.floor, min(limits.most, tokens - limits.floor) + 1, limits.align):
        for rest in all_cuts(tokens - size, limits):
            yield [size, *rest]
