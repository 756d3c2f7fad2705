"""Times of one step, reported by its stages one by one, at once or later."""

from __future__ import annotations

from atom_lite.engine.step_times import TimesByStage
from atom_lite.messages import StepTimes


def times(*pairs: tuple[int, float]) -> list[StepTimes]:
    return [StepTimes(step_id=step_id, stage_seconds=[seconds]) for step_id, seconds in pairs]


def test_a_step_has_a_time_once_every_stage_has_told_its_own() -> None:
    stages = TimesByStage(3)
    stages.put(2, times((5, 0.3)))
    stages.put(0, times((5, 0.1)))
    assert stages.take() == []
    stages.put(1, times((5, 0.2)))
    assert stages.take() == [StepTimes(step_id=5, stage_seconds=[0.1, 0.2, 0.3])]
    assert stages.take() == []


def test_stages_that_tell_later_and_in_one_go_are_joined_in_the_order_of_steps() -> None:
    stages = TimesByStage(2)
    stages.put(1, times((0, 1.0)))
    stages.put(1, times((1, 2.0)))
    stages.put(0, times((0, 0.1), (1, 0.2), (2, 0.3)))
    assert stages.take() == [
        StepTimes(step_id=0, stage_seconds=[0.1, 1.0]),
        StepTimes(step_id=1, stage_seconds=[0.2, 2.0]),
    ]


def test_a_step_that_one_stage_has_not_timed_has_no_time_and_holds_up_no_other() -> None:
    stages = TimesByStage(3)
    stages.put(0, times((0, 0.1), (1, 0.1), (3, 0.1)))
    stages.put(1, times((1, 0.2), (2, 0.2), (3, 0.2)))
    stages.put(2, times((0, 0.3), (2, 0.3), (3, 0.3)))
    assert [joined.step_id for joined in stages.take()] == [3]


def test_one_stage_alone_is_all_stages() -> None:
    stages = TimesByStage(1)
    stages.put(0, times((4, 0.5)))
    assert stages.take() == times((4, 0.5))


def test_what_the_last_stage_takes_to_draw_stays_apart() -> None:
    stages = TimesByStage(2)
    stages.put(1, [StepTimes(step_id=0, stage_seconds=[0.2], draw_seconds=0.05)])
    stages.put(0, times((0, 0.1)))
    assert stages.take() == [StepTimes(step_id=0, stage_seconds=[0.1, 0.2], draw_seconds=0.05)]
