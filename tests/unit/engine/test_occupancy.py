from __future__ import annotations

import pytest

from atom_lite.engine.occupancy import PipelineOccupancy
from atom_lite.messages import StepTimes


def finish(occupancy: PipelineOccupancy, step_id: int, seconds: list[float], now: float) -> None:
    """A step comes back and its time with it."""
    occupancy.add(StepTimes(step_id=step_id, stage_seconds=seconds))
    occupancy.finish(step_id, now)


def run_prompt(occupancy: PipelineOccupancy, begin: float, chunks: int) -> float:
    """Two stages of 1 s each, two chunks in flight; the time at which the last one is back."""
    for index in range(chunks):
        if index >= 2:
            finish(occupancy, index - 2, [1.0, 1.0], begin + index)
        occupancy.start(index, begin + max(0, index - 1))
    for index in range(max(0, chunks - 2), chunks):
        finish(occupancy, index, [1.0, 1.0], begin + index + 2)
    return begin + chunks + 1


def test_a_prompt_of_n_chunks_has_one_bubble_on_each_of_two_stages() -> None:
    occupancy = PipelineOccupancy()
    run_prompt(occupancy, 100.0, 5)
    assert occupancy.busy_seconds == [5.0, 5.0]
    assert occupancy.bubble_seconds == pytest.approx([1.0, 1.0])


def test_an_idle_pipeline_has_no_bubbles() -> None:
    occupancy = PipelineOccupancy()
    end = run_prompt(occupancy, 0.0, 3)
    run_prompt(occupancy, end + 1000.0, 3)
    assert occupancy.busy_seconds == [6.0, 6.0]
    assert occupancy.bubble_seconds == pytest.approx([2.0, 2.0])


def test_a_slow_stage_makes_the_others_wait() -> None:
    occupancy = PipelineOccupancy()
    occupancy.start(0, 0.0)
    finish(occupancy, 0, [1.0, 3.0, 1.0], 5.5)
    assert occupancy.bubble_seconds == pytest.approx([4.5, 2.5, 4.5])


def test_a_bubble_never_shrinks() -> None:
    occupancy = PipelineOccupancy()
    occupancy.start(0, 0.0)
    occupancy.start(1, 0.0)
    finish(occupancy, 0, [1.0, 1.0], 6.0)  # stage 0 has run step 1 too, but that is not known yet
    before = occupancy.bubble_seconds
    finish(occupancy, 1, [4.0, 1.0], 7.0)
    assert before == [5.0, 5.0]
    assert occupancy.bubble_seconds == [5.0, 5.0]
    assert occupancy.busy_seconds == [5.0, 2.0]


def test_a_time_that_is_known_late_is_busy_all_the_same() -> None:
    occupancy = PipelineOccupancy()
    for step_id in range(3):
        occupancy.start(step_id, 2.0 * step_id)
        if step_id > 0:
            occupancy.add(StepTimes(step_id=step_id - 1, stage_seconds=[1.0, 2.0]))
        occupancy.finish(step_id, 2.0 * step_id + 2.0)
    assert occupancy.busy_seconds == [2.0, 4.0]
    occupancy.add(StepTimes(step_id=2, stage_seconds=[1.0, 2.0]))
    occupancy.start(3, 100.0)
    finish(occupancy, 3, [1.0, 2.0], 102.0)
    assert occupancy.busy_seconds == [4.0, 8.0]
    assert occupancy.bubble_seconds == [4.0, 2.0]


def test_the_last_stage_is_busy_with_drawing_too() -> None:
    occupancy = PipelineOccupancy()
    occupancy.start(0, 0.0)
    occupancy.add(StepTimes(step_id=0, stage_seconds=[1.0, 2.0], draw_seconds=0.5))
    occupancy.finish(0, 4.0)
    assert occupancy.busy_seconds == [1.0, 2.5]
    assert occupancy.bubble_seconds == [3.0, 1.5]
