"""Figures of a run that can be computed by hand."""

from __future__ import annotations

import pytest

from atom_lite.simulation.chrome_trace import StageInterval
from atom_lite.simulation.measure import RunRecord, SequenceRecord, measure, spread


def box(stage: int, step_id: int, start: float, seconds: float) -> StageInterval:
    return StageInterval(
        stage=stage, step_id=step_id, start_seconds=start, duration_seconds=seconds, label=""
    )


def test_figures_of_a_run_by_hand() -> None:
    run = RunRecord(
        num_stages=2,
        sequences=(
            SequenceRecord(
                sequence_id=0,
                arrival_seconds=1.0,
                prompt_tokens=100,
                token_seconds=[3.0, 4.0, 6.0],
            ),
            SequenceRecord(
                sequence_id=1, arrival_seconds=2.0, prompt_tokens=50, token_seconds=[6.0]
            ),
            SequenceRecord(
                sequence_id=2, arrival_seconds=2.0, prompt_tokens=9999, error="too long"
            ),
        ),
        intervals=(
            box(0, 0, 1.0, 1.0),
            box(1, 0, 2.0, 2.0),
            box(0, 1, 2.0, 1.0),
            box(1, 1, 4.0, 2.0),
        ),
    )
    figures = measure(run)
    assert figures.duration_seconds == 5.0
    assert figures.busy_seconds == (2.0, 4.0)
    assert figures.bubble_seconds == (3.0, 1.0)
    assert figures.busy_share == pytest.approx(0.6)
    assert (figures.ttft_seconds.mean, figures.ttft_seconds.most) == (3.0, 4.0)
    assert (figures.itl_seconds.count, figures.itl_seconds.mean) == (2, 1.5)
    assert figures.tpot_seconds.mean == 1.5
    assert figures.prompt_tokens_per_second == pytest.approx(30.0)
    assert figures.output_tokens_per_second == pytest.approx(0.8)
    assert (figures.num_steps, figures.num_refused) == (2, 1)


def test_percentiles_are_interpolated() -> None:
    result = spread([float(value) for value in range(101)])
    assert (result.p50, result.p99, result.most) == (50.0, 99.0, 100.0)
    assert spread([1.0, 2.0]).p50 == 1.5
    assert spread([]).count == 0
