"""What a step costs the scheduler, counted in lines that run: a clock would judge the machine."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.scheduling_cost import CASES, NUM_RUNNING, Crowd

if TYPE_CHECKING:
    from types import FrameType

MOST_LINES_PER_ROW = 36  # 30 when this was written


def count_lines(crowd: Crowd) -> int:
    """Lines of the control plane that planning one step runs."""
    count = 0

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal count
        count += event == "line" and "atom_lite" in frame.f_code.co_filename
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        plan = crowd.scheduler.schedule(1.0)
    finally:
        sys.settrace(before)
    assert plan is not None and len(plan.rows) >= NUM_RUNNING - 1
    return count


@pytest.mark.parametrize("case", CASES)
def test_planning_a_crowds_step_runs_few_lines_per_row(case: str) -> None:
    assert count_lines(Crowd("stall-free", case, 1)) < MOST_LINES_PER_ROW * NUM_RUNNING
