"""A row that brings an error in the place of its token ends its sequence, and no other."""

from __future__ import annotations

import msgspec
import pytest

from atom_lite.messages import Grammar, RowError, StepPlan, StepResult
from atom_lite.scheduler.scheduler import Scheduler
from tests.fakes.scheduler_inputs import (
    answer,
    finished,
    make_limits,
    make_submission,
    output_tokens,
    run_step,
    run_until_idle,
)


def failing(plan: StepPlan, sequence_id: int, *, epoch: int = 0, status: int = 500) -> StepResult:
    """The answer of a plan, but for one sequence whose row failed."""
    tokens = [t for t in answer(plan).tokens if t.sequence_id != sequence_id]
    error = RowError(sequence_id, epoch, "no such token", status)
    return StepResult(step_id=plan.step_id, tokens=tokens, errors=[error])


@pytest.mark.parametrize("status", [400, 500])
def test_the_sequence_ends_with_the_errors_status_and_the_others_go_on(status: int) -> None:
    scheduler = Scheduler(make_limits())
    for sequence_id in (1, 2):
        scheduler.submit(make_submission(sequence_id, 5), 0.0)
    run_step(scheduler)
    plan = scheduler.schedule(0.0)
    assert plan is not None
    events = scheduler.commit(failing(plan, 1, status=status), 0.0)
    scheduler.check_integrity()
    end = finished(events)[1]
    assert (end.reason, end.error, end.error_status) == ("error", "no such token", status)
    assert end.num_output_tokens == 1
    assert output_tokens(events) == {2: [7]}
    assert finished(run_until_idle(scheduler))[2].reason == "length"
    assert scheduler.stats().kv_usage == 0.0


def test_an_error_for_a_sequence_that_has_ended_meanwhile_is_dropped() -> None:
    scheduler = Scheduler(make_limits())
    scheduler.submit(make_submission(1, 5), 0.0)
    plan = scheduler.schedule(0.0)
    assert plan is not None
    assert len(scheduler.abort(1, "abort", 0.0)) == 1
    assert scheduler.commit(failing(plan, 1), 0.0) == []
    scheduler.check_integrity()


def test_stages_get_the_grammar_with_each_start_of_its_sequence() -> None:
    grammar = Grammar(key="k", backend="guidance", compiled=b"start: /a/")
    scheduler = Scheduler(make_limits(num_blocks=7))
    first, second = (make_submission(i, 8, 16) for i in (1, 2))
    scheduler.submit(first, 0.0)
    scheduler.submit(msgspec.structs.replace(second, grammar=grammar), 0.0)
    starts = []
    while scheduler.has_work():
        plan, _ = run_step(scheduler)
        starts += [(s.sequence_id, s.epoch, s.grammar) for s in plan.starts]
    assert starts == [(1, 0, None), (2, 0, grammar), (2, 1, grammar)]
