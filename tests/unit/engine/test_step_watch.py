from __future__ import annotations

import pytest

from atom_lite.engine.step_watch import StepWatch


def test_the_time_of_a_step_counts_from_when_it_became_the_oldest() -> None:
    watch = StepWatch(10.0)
    watch.start(0, now=0.0)
    watch.start(1, now=1.0)
    assert watch.overdue(now=10.0) is None
    assert watch.overdue(now=10.1) == 0
    watch.finish(0, now=9.0)
    assert watch.overdue(now=18.9) is None
    assert watch.overdue(now=19.1) == 1


def test_idling_is_not_counted() -> None:
    watch = StepWatch(10.0)
    watch.start(0, now=0.0)
    watch.finish(0, now=1.0)
    assert watch.overdue(now=1000.0) is None
    watch.start(1, now=1000.0)
    assert watch.overdue(now=1005.0) is None


def test_a_limit_of_zero_is_none() -> None:
    watch = StepWatch(0.0)
    watch.start(0, now=0.0)
    assert watch.overdue(now=1e9) is None


def test_results_out_of_order_are_a_defect() -> None:
    watch = StepWatch(1.0)
    watch.start(0, now=0.0)
    watch.start(1, now=0.0)
    with pytest.raises(AssertionError, match="step 1 came where 0 was due"):
        watch.finish(1, now=0.5)
