"""From request records to figures: TTFT, ITL, TPOT, output tokens per second.

    TTFT  seconds from sending the request to the first token
    ITL   seconds between two arrivals of one stream; the distribution is over gaps, of all streams
    TPOT  (last arrival - first arrival) / (output tokens - 1); one number for each request

Failed requests count as failures and give no latency, so that a server cannot look fast by
refusing. Pure; no I/O.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.stream_client import RequestRecord
    from benchmarks.workloads import Point


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """How a point's requests did; means and shares are over its requests.

    Attributes:
        goodput_per_second: requests that met both objectives, over the point's time.
        fluidity_docs: mean, a late token counted once.
        fluidity_paper: mean, a late token counted for each deadline that it missed.
        fluid_share_docs: of requests with fluidity of at least 0.9.
        fluid_share_paper: likewise.
        late_gap_share: gaps longer than the objective, without any slack.
    """

    goodput_per_second: float
    fluidity_docs: float
    fluidity_paper: float
    fluid_share_docs: float
    fluid_share_paper: float
    late_gap_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What is reported about one point; None where nothing was measured. Times in seconds."""

    name: str
    requests: int
    failed: int
    errors: dict[str, int]
    prompt_tokens_mean: float | None
    cached_tokens: int
    output_tokens: int
    wall_seconds: float
    output_tokens_per_second: float
    ttft_p50: float | None
    ttft_p99: float | None
    itl_p50: float | None
    itl_p99: float | None
    itl_max: float | None
    tpot_p50: float | None
    e2e_p50: float | None
    levels: Levels | None = None  # by objectives, where there are some


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Linear interpolation between the closest ranks; None for no values."""
    if not values:
        return None
    ordered = sorted(values)
    rank = (len(ordered) - 1) * percent / 100
    low = math.floor(rank)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (rank - low)


def figures_of(point: Point) -> Figures:
    """All figures of a point; with a window, of what happened inside it."""
    records = [record for record in point.records if touches(record, point.window)]
    good = [record for record in records if _counts(record, point)]
    failed = [record for record in records if record.error is not None]
    began = [record for record in good if began_inside(record, point.window)]
    ttfts = [record.arrivals[0] - record.started for record in began]
    gaps = [gap for record in good for gap in gaps_of(record, point.window)]
    tpots = [tpot for record in good if (tpot := tpot_of(record)) is not None]
    prompts = [record.prompt_tokens for record in good if record.prompt_tokens is not None]
    output_tokens = round(sum(_tokens_inside(record, point.window) for record in records))
    wall = point.ended - point.started
    return Figures(
        name=point.name,
        requests=len(records),
        failed=len(failed),
        errors=dict(Counter(record.error for record in failed if record.error is not None)),
        prompt_tokens_mean=sum(prompts) / len(prompts) if prompts else None,
        cached_tokens=sum(record.cached_tokens or 0 for record in good),
        output_tokens=output_tokens,
        wall_seconds=wall,
        output_tokens_per_second=output_tokens / wall if wall > 0 else 0.0,
        ttft_p50=percentile(ttfts, 50),
        ttft_p99=percentile(ttfts, 99),
        itl_p50=percentile(gaps, 50),
        itl_p99=percentile(gaps, 99),
        itl_max=max(gaps, default=None),
        tpot_p50=percentile(tpots, 50),
        e2e_p50=percentile([record.ended - record.started for record in good], 50),
    )


def touches(record: RequestRecord, window: tuple[float, float] | None) -> bool:
    """Whether a request lived inside the window."""
    return window is None or (record.started <= window[1] and record.ended >= window[0])


def _counts(record: RequestRecord, point: Point) -> bool:
    """A windowed stream counts up to where it broke off: its last gap is what is looked for."""
    return bool(record.arrivals) and (record.error is None or point.window is not None)


def began_inside(record: RequestRecord, window: tuple[float, float] | None) -> bool:
    """Whether its first token came inside the window."""
    return bool(record.arrivals) and _inside(record.arrivals[0], window)


def _inside(moment: float, window: tuple[float, float] | None) -> bool:
    return window is None or window[0] <= moment <= window[1]


def gaps_of(record: RequestRecord, window: tuple[float, float] | None) -> list[float]:
    """Gaps that touch the window, in full.

    A stream that was cut off closes its last gap there: one that stalled until the end of the run
    must show the stall.
    """
    if window is None:
        return [after - before for before, after in pairwise(record.arrivals)]
    moments = record.arrivals if record.finish_reason else [*record.arrivals, record.ended]
    start, end = window
    return [
        after - before for before, after in pairwise(moments) if after >= start and before <= end
    ]


def _tokens_inside(record: RequestRecord, window: tuple[float, float] | None) -> float:
    if window is None or not record.arrivals:
        return record.output_tokens
    inside = sum(_inside(moment, window) for moment in record.arrivals)
    return record.output_tokens * inside / len(record.arrivals)


def tpot_of(record: RequestRecord) -> float | None:
    """TPOT; None with fewer than two tokens."""
    if record.output_tokens < 2 or len(record.arrivals) < 2:
        return None
    return (record.arrivals[-1] - record.arrivals[0]) / (record.output_tokens - 1)
