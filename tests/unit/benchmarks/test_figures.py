"""Figures are what their definitions say."""

import pytest

from benchmarks.figures import figures_of, percentile
from benchmarks.stream_client import RequestRecord, Usage
from benchmarks.workloads import Point


def record(
    started: float, arrivals: list[float], tokens: int | None = None, **extra: object
) -> RequestRecord:
    values: dict[str, object] = {"ended": arrivals[-1] if arrivals else started + 1}
    values |= {"finish_reason": "length", "num_chunks": len(arrivals)} | extra
    made = RequestRecord(started=started, arrivals=arrivals, **values)  # type: ignore[arg-type]
    if tokens is not None:
        made.usage = Usage(prompt_tokens=100, completion_tokens=tokens)
    return made


def point(*records: RequestRecord, **extra: object) -> Point:
    return Point(name="p", records=list(records), **extra)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [([], 50, None), ([3.0], 99, 3.0), ([1.0, 2.0, 4.0], 50, 2.0), ([1.0, 3.0], 75, 2.5)],
)
def test_percentile(values: list[float], percent: float, expected: float | None) -> None:
    assert percentile(values, percent) == expected


def test_latencies_of_one_stream() -> None:
    figures = figures_of(point(record(10.0, [11.0, 11.5, 13.5], 3), started=10.0, ended=14.0))
    assert figures.ttft_p50 == 1.0
    assert figures.itl_p50 == 1.25
    assert figures.itl_max == 2.0
    assert figures.tpot_p50 == 1.25
    assert figures.output_tokens == 3
    assert figures.output_tokens_per_second == 0.75
    assert figures.prompt_tokens_mean == 100


def test_tokens_that_share_a_chunk_are_one_gap_but_all_count_for_tpot() -> None:
    figures = figures_of(point(record(0.0, [1.0, 2.0], 9), started=0.0, ended=2.0))
    assert figures.itl_max == 1.0
    assert figures.tpot_p50 == 1.0 / 8
    assert figures.output_tokens_per_second == 4.5


def test_failures_are_counted_by_kind_and_give_no_latency() -> None:
    figures = figures_of(
        point(
            record(0.0, [1.0, 2.0], 2),
            record(0.0, [0.001], 1, error="HTTP 503: full"),
            record(0.0, [], error="HTTP 503: full"),
            started=0.0,
            ended=2.0,
        )
    )
    assert (figures.requests, figures.failed) == (3, 2)
    assert figures.errors == {"HTTP 503: full": 2}
    assert figures.ttft_p50 == 1.0


def test_nothing_measured_is_none_not_zero() -> None:
    figures = figures_of(point(record(0.0, [], error="timed out"), started=0.0, ended=0.0))
    assert figures.ttft_p50 is None
    assert figures.itl_p99 is None
    assert figures.tpot_p50 is None
    assert figures.output_tokens_per_second == 0.0


def test_a_window_counts_only_gaps_and_tokens_that_touch_it() -> None:
    stream = record(0.0, [1.0, 2.0, 3.0, 10.0, 11.0], 5)
    figures = figures_of(point(stream, started=2.5, ended=5.0, window=(2.5, 5.0)))
    assert figures.itl_max == 7.0  # the gap that began inside
    assert figures.itl_p50 == 4.0  # 2 to 3, and 3 to 10
    assert figures.output_tokens == 1


def test_requests_outside_the_window_are_left_out() -> None:
    outside, inside = record(0.0, [0.5, 1.0], 2), record(4.0, [5.0, 6.0], 2)
    figures = figures_of(point(outside, inside, started=4.0, ended=8.0, window=(4.0, 8.0)))
    assert figures.requests == 1


def test_a_stream_that_stalled_until_it_was_cut_off_shows_the_stall() -> None:
    stalled = record(0.0, [1.0, 2.0], None, finish_reason=None, ended=30.0)
    figures = figures_of(point(stalled, started=1.5, ended=25.0, window=(1.5, 25.0)))
    assert figures.itl_max == 28.0
    gave_up = record(0.0, [1.0, 2.0], None, finish_reason=None, ended=30.0, error="timed out")
    figures = figures_of(point(gave_up, started=1.5, ended=25.0, window=(1.5, 25.0)))
    assert figures.itl_max == 28.0
    assert figures.failed == 1
