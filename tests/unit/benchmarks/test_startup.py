"""The table of starts; starting servers is what tests/e2e does."""

from __future__ import annotations

from benchmarks.startup import Start, table


def start(kind: str, seconds: float) -> Start:
    return Start(
        kind=kind, seconds=seconds, cpu_seconds=2.5, idle_bytes=700_000_000, peak_bytes=10**9
    )


def test_each_kind_has_its_median_worst_run_and_bound() -> None:
    text = table([start("cold", 9), start("warm", 3), start("warm", 2), start("warm", 5)])
    assert "| cold | 1 | 9.00 | 9.00 | 2.50 | 700 | 1000 | 12 |" in text
    assert "| warm | 3 | 3.00 | 5.00 | 2.50 | 700 | 1000 | 4 |" in text
    assert "OpenVINO" in text
