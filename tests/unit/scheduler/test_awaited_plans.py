"""A planner that does not know yet: the step goes without that prompt, and nothing else waits."""

from atom_lite.chunking.planner import plan_limits
from atom_lite.chunking.planners.makespan import MakespanPlanner
from atom_lite.scheduler.scheduler import Scheduler
from tests.fakes.deferred import Deferred
from tests.fakes.scheduler_inputs import make_limits, make_submission, run_step, shape
from tests.unit.chunking.samples import SERVED

LONG, SHORT = 1000, 50


def make() -> tuple[Scheduler, MakespanPlanner, Deferred]:
    background = Deferred()
    planner = MakespanPlanner(plan_limits(256), background=background)
    planner.install((SERVED, SERVED))
    limits = make_limits(
        decode_step_tokens=256,
        prefill_step_tokens=256,
        max_model_len=2048,
        num_blocks=512,
        pipeline_depth=2,
    )
    return Scheduler(limits, planner=planner), planner, background


def test_a_prompt_starts_when_its_plan_is_there() -> None:
    scheduler, _, background = make()
    scheduler.submit(make_submission(1, LONG), 0.0)
    assert scheduler.schedule(0.0) is None
    assert scheduler.has_work()
    background.work()
    assert shape(scheduler.schedule(0.0))[0][0] == 1


def test_decodes_go_on_while_a_plan_is_searched() -> None:
    scheduler, _, _ = make()
    scheduler.submit(make_submission(1, SHORT, max_tokens=8), 0.0)
    run_step(scheduler)
    scheduler.submit(make_submission(2, LONG), 0.0)
    plan, _ = run_step(scheduler)
    assert shape(plan) == [(1, 1)]


def test_a_half_done_prompt_whose_models_change_waits_and_then_goes_on() -> None:
    scheduler, planner, background = make()
    scheduler.submit(make_submission(1, LONG), 0.0)
    scheduler.schedule(0.0)
    background.work()
    first, _ = run_step(scheduler)
    done = first.rows[0].num_tokens
    planner.install((SERVED.with_decodes(0.0, 0.0), SERVED))  # the same: nothing to wait for
    run_step(scheduler)
    planner.install((SERVED, SERVED, SERVED))
    assert scheduler.schedule(0.0) is None
    background.work()
    plan, _ = run_step(scheduler)
    assert plan.rows[0].start > done


def test_a_prompt_that_is_aborted_while_its_plan_is_searched_leaves_nothing_behind() -> None:
    scheduler, _, background = make()
    scheduler.submit(make_submission(1, LONG), 0.0)
    scheduler.schedule(0.0)
    scheduler.abort(1, "abort", 0.0)
    background.work()
    scheduler.check_integrity()
    assert not scheduler.has_work()
