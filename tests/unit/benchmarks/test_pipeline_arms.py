"""One scheduler for all arms, and still each arm's own step budget."""

from __future__ import annotations

import pytest

from atom_lite.chunking.controller import StaticController
from atom_lite.chunking.planners.fixed import FixedPlanner
from atom_lite.scheduler.scheduler import Scheduler
from benchmarks.pipeline_arms import LEARNER, SwitchedController
from tests.fakes.scheduler_inputs import make_limits, make_submission, run_step

LONGEST, LEARNERS_BUDGET = 400, 48


@pytest.mark.parametrize(("arm", "step_tokens"), [("fixed-64", 64), (LEARNER, LEARNERS_BUDGET)])
def test_a_step_of_several_prompts_keeps_to_the_arms_budget(arm: str, step_tokens: int) -> None:
    controller = SwitchedController(
        StaticController(FixedPlanner(32), "a test"),
        longest_tokens=LONGEST,
        budget_tokens=LEARNERS_BUDGET,
        scheduler_tokens=LONGEST,
    )
    limits = make_limits(
        decode_step_tokens=LONGEST, prefill_step_tokens=LONGEST, max_model_len=512, num_blocks=1024
    )
    scheduler = Scheduler(limits, planner=controller.planner)
    controller.use(arm)
    for sequence_id in range(4):
        scheduler.submit(make_submission(sequence_id, 100 + sequence_id), 0.0)
    totals = []
    while scheduler.has_work():
        plan, _ = run_step(scheduler)
        totals.append(sum(row.num_tokens for row in plan.rows))
    assert max(totals) == step_tokens
