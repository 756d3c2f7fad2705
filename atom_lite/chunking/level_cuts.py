"""The best cuts of a prompt over equal stages: exact, but for a tolerance.

What counts there is `sum(t) + w*max(t)` (`flow_shop`). For a given highest time of a chunk the best
cuts are found from the prompt's end: each chunk as large as that time allows. No other cuts within
it have fewer chunks, and none has any of its cuts earlier, counted from the end; so both `n*c` and
`gamma*sum(L)` are least. (From the front on, greedy cuts have as few chunks, but later cuts.)
Where a token of the prefix costs more than a new one it need not be so; a few large chunks are best
there anyhow.

That leaves one number. A higher peak never makes the sum larger, so the sum at an interval's upper
end and the peak at its lower end bound all that lies between: branch and bound finds the best peak
in a few dozen cuts.

Pure; runs in the head process, off the thread that feeds a stage.
"""

from __future__ import annotations

import math
from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

from atom_lite.chunking.cuts import Span, chunk_times

if TYPE_CHECKING:
    from atom_lite.chunking.latency_model import LatencyModel
    from atom_lite.chunking.planner import PlanLimits

TOLERANCE = 0.001  # of the objective: no better cuts are looked for
CUT_OVERHEAD = 5.0  # of one more set of cuts, in evaluations of a chunk
_JUST_BELOW = 1.0 - 1e-9
_JUST_ABOVE = 1.0 + 1e-9


class LevelCuts(NamedTuple):
    """Chunk sizes with their sum and peak of times, in seconds."""

    sizes: list[int]
    total_seconds: float
    peak_seconds: float

    def objective(self, peak_weight: float) -> float:
        """What is to be least."""
        return self.total_seconds + peak_weight * self.peak_seconds


def best_level_cuts(
    model: LatencyModel,
    span: Span,
    limits: PlanLimits,
    *,
    peak_weight: float,
    guess_seconds: float,
    most_evaluations: float,
) -> LevelCuts:
    """The cuts with the least `sum(t) + peak_weight * max(t)`.

    Args:
        model: of every stage.
        span: the tokens to cut.
        limits: sizes that chunks keep to.
        peak_weight: stages but one.
        guess_seconds: where the best peak is likely to be.
        most_evaluations: of a chunk's time; then the best of what was seen is taken.
    """

    def cuts_within(peak_seconds: float) -> LevelCuts:
        sizes = cut_from_end(model, span, peak_seconds, limits)
        times = chunk_times(model, span, sizes)
        return LevelCuts(sizes, sum(times), max(times))

    best = top = cuts_within(math.inf)
    left = most_evaluations - len(top.sizes)
    least = _least_peak(model, span, limits)
    # Peaks in between that are not known: the least objective there, both ends, the sum at the top.
    open_ranges = [(0.0, least, top.peak_seconds, top.total_seconds)]
    middle = max(guess_seconds, least * _JUST_ABOVE)
    while open_ranges and left > 0.0:
        bound, low, high, total = heappop(open_ranges)
        if bound >= best.objective(peak_weight) * (1.0 - TOLERANCE):
            break
        if not low < middle < high:
            middle = math.sqrt(low * high)
        found = cuts_within(middle)
        left -= len(found.sizes) + CUT_OVERHEAD
        best = min(best, found, key=lambda cuts: cuts.objective(peak_weight))
        ranges = [(middle, high, total)]
        if found.peak_seconds <= middle:  # else least sizes stand against any lower peak
            ranges.append((low, found.peak_seconds * _JUST_BELOW, found.total_seconds))
        for ends in ranges:
            if ends[0] < ends[1] * _JUST_BELOW:
                heappush(open_ranges, (ends[2] + peak_weight * ends[0], *ends))
        middle = 0.0
    return best


def cut_from_end(
    model: LatencyModel, span: Span, peak_seconds: float, limits: PlanLimits
) -> list[int]:
    """The cuts of the span, each chunk the largest within the time, from the last to the first.

    A chunk that takes longer at its least size is as small as it may be.
    """
    most, align, floor = limits
    start, end = span
    sizes = []
    while end > start:
        if end - start < 2 * floor and end - start <= most:
            begin = start
        else:
            earliest = _earliest_begin(model, end, end - most, start, peak_seconds)
            begin = start + math.ceil(max(earliest - start, 0.0) / align) * align
            begin = min(begin, start + (end - floor - start) // align * align)
            if start < begin < start + floor:  # what would be left is too small for a chunk
                begin = start + floor
        sizes.append(end - begin)
        end = begin
    return sizes[::-1]


def _least_peak(model: LatencyModel, span: Span, limits: PlanLimits) -> float:
    """A time that some chunk takes at least, however the span is cut."""
    if model.prefix_seconds_per_token > model.linear_seconds_per_token:
        # a last chunk gets cheaper with every token that it takes from its prefix
        return model.chunk_seconds(span.start, min(limits.floor, span.tokens))
    aligned = max(span.tokens - limits.floor, 0) // limits.align * limits.align
    return model.chunk_seconds(span.start + aligned, span.tokens - aligned)


def _earliest_begin(
    model: LatencyModel, end: int, least: int, start: int, peak_seconds: float
) -> float:
    """The first position at which a chunk that ends at `end` takes no longer than the time.

    From `begin` on it takes `c + b*end + a*end^2 - (b - gamma)*begin - a*begin^2`.
    """
    first = float(max(least, start))
    curve = model.attention_seconds_per_area
    slope = model.linear_seconds_per_token - model.prefix_seconds_per_token
    whole = model.constant_seconds + (model.linear_seconds_per_token + curve * end) * end
    excess = whole - peak_seconds
    if excess <= (slope + curve * first) * first:
        return first
    divisor = slope + math.sqrt(max(slope * slope + 4.0 * curve * excess, 0.0))
    return 2.0 * excess / divisor if divisor > 0.0 else float(end)
