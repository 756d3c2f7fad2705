"""Goodput and fluidity of what a client saw, by hand."""

from __future__ import annotations

import pytest

from benchmarks import report
from benchmarks.figures import figures_of
from benchmarks.serve_load import parse_load
from benchmarks.service_levels import Objectives, levels_of
from benchmarks.stream_client import LoadError, RequestRecord, Usage
from benchmarks.workloads import Point

OBJECTIVES = Objectives(tbt_seconds=0.5, ttft_seconds=1.0)
FLAGS = ("--base-url", "http://127.0.0.1:1", "--workload", "single")


def record(started: float, arrivals: list[float], error: str | None = None) -> RequestRecord:
    return RequestRecord(
        started=started,
        arrivals=arrivals,
        ended=arrivals[-1] if arrivals else started,
        num_chunks=len(arrivals),
        finish_reason="length",
        usage=Usage(prompt_tokens=100, completion_tokens=len(arrivals)),
        error=error,
    )


def test_a_stall_counts_once_or_for_each_deadline_that_passed() -> None:
    """Of ten tokens one is 2 s late: the deadlines of five passed while it was missing."""
    stalled = record(0.0, [1.0, 1.5, 2.0, 2.5, 3.0, 5.5, 6.0, 6.5, 7.0, 7.5])
    levels = levels_of(Point(name="p", records=[stalled], started=0.0, ended=10.0), OBJECTIVES)
    assert levels is not None
    assert levels.fluidity_docs == pytest.approx(9 / 10)
    assert levels.fluidity_paper == pytest.approx(9 / 14)
    assert (levels.fluid_share_docs, levels.fluid_share_paper) == (1.0, 0.0)
    assert levels.late_gap_share == pytest.approx(1 / 9)


def test_goodput_wants_both_objectives_and_an_answer() -> None:
    good = record(0.0, [1.0, 1.5, 2.0])
    late_start = record(0.0, [1.5, 2.0])
    slow = record(0.0, [1.0, 2.0])
    failed = record(0.0, [0.5, 0.6], error="HTTP 500")
    point = Point(name="p", records=[good, late_start, slow, failed], started=0.0, ended=4.0)
    levels = levels_of(point, OBJECTIVES)
    assert levels is not None and levels.goodput_per_second == 1 / 4
    longer = Objectives(tbt_seconds=0.5, ttft_seconds=1.0, ttft_seconds_per_token=0.01)
    levels = levels_of(point, longer)
    assert levels is not None and levels.goodput_per_second == 2 / 4


def test_inside_a_window_a_stream_counts_with_what_happened_there() -> None:
    stream = record(0.0, [5.0, 9.0, 9.5, 10.0, 10.5])
    point = Point(name="p", records=[stream], started=9.2, ended=10.5, window=(9.2, 10.5))
    levels = levels_of(point, OBJECTIVES)
    assert levels is not None and levels.fluidity_docs == 1.0
    point.window = (6.0, 10.5)
    levels = levels_of(point, OBJECTIVES)
    assert levels is not None and levels.fluidity_docs == pytest.approx(4 / 5)
    point.window = (20.0, 30.0)
    assert levels_of(point, OBJECTIVES) is None


def test_the_flags_make_objectives() -> None:
    load, _ = parse_load((*FLAGS, "--tbt-slo-ms", "50", "--ttft-slo-ms-per-token", "2"))
    assert load.objectives == Objectives(
        tbt_seconds=0.05, ttft_seconds=0.3, ttft_seconds_per_token=0.002
    )
    assert parse_load(FLAGS)[0].objectives is None
    for value in ("0", "-1", "inf"):
        with pytest.raises(LoadError, match="--tbt-slo-ms"):
            parse_load((*FLAGS, "--tbt-slo-ms", value))


def test_the_table_shows_a_dash_where_there_are_no_levels() -> None:
    row = figures_of(Point(name="nobody", started=0.0, ended=1.0))
    assert report.levels_table([row]).splitlines()[1].split() == ["nobody", *["-"] * 6]
