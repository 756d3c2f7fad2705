"""Goodput and fluid requests of a run, by hand."""

from __future__ import annotations

import pytest

from atom_lite.simulation.chrome_trace import StageInterval
from atom_lite.simulation.measure import RunRecord, SequenceRecord
from atom_lite.simulation.service_levels import Promise, service_levels


def record(sequence_id: int, token_seconds: list[float]) -> SequenceRecord:
    return SequenceRecord(
        sequence_id=sequence_id, arrival_seconds=0.0, prompt_tokens=8, token_seconds=token_seconds
    )


def test_goodput_and_fluid_shares() -> None:
    """The second has a good mean but one token is late by three deadlines; the fourth got none."""
    steady = [1.0 + 0.5 * index for index in range(20)]
    one_stall = [1.0, *(3.25 + 0.375 * index for index in range(14))]
    late_start = [5.0, 5.25]
    run = RunRecord(
        num_stages=1,
        sequences=tuple(
            record(index, times) for index, times in enumerate((steady, one_stall, late_start, []))
        ),
        intervals=(
            StageInterval(
                stage=0, step_id=0, start_seconds=0.0, duration_seconds=20.0, label="decode"
            ),
        ),
    )
    levels = service_levels(run, Promise(ttft_seconds=1.0, tbt_seconds=0.5))
    assert levels.goodput_per_second == pytest.approx(1 / 20)
    levels = service_levels(run, Promise(ttft_seconds=1.0, tbt_seconds=0.55))
    assert levels.goodput_per_second == pytest.approx(2 / 20)
    assert levels.fluid_share_docs == pytest.approx(2 / 4)
    assert levels.fluid_share_paper == pytest.approx(1 / 4)


def test_a_run_without_requests_breaks_no_promise() -> None:
    run = RunRecord(num_stages=1, sequences=(), intervals=())
    levels = service_levels(run, Promise(ttft_seconds=1.0, tbt_seconds=0.5))
    assert levels.goodput_per_second == 0.0
    assert levels.fluid_share_docs == levels.fluid_share_paper == 1.0
