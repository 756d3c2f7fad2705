"""max_tokens 0: the prompt is computed, nothing is drawn, and the sequence ends."""

from __future__ import annotations

import pytest

from atom_lite.messages import SequenceFinished
from atom_lite.scheduler.scheduler import Scheduler
from tests.fakes.scheduler_inputs import (
    CappedChunks,
    answer,
    finished,
    make_limits,
    make_submission,
    run_step,
    run_until_idle,
    shape,
)

PROMPT = list(range(16))


def test_it_ends_with_length_when_its_last_chunk_is_home() -> None:
    scheduler = Scheduler(make_limits(), planner=CappedChunks(10))
    scheduler.submit(make_submission(1, PROMPT, 0), 0.0)
    plan, events = run_step(scheduler)
    assert shape(plan) == [(1, 10)] and events == []
    plan, [end] = run_step(scheduler, now=8.0)
    assert shape(plan) == [(1, 6)] and not plan.rows[0].sample
    assert isinstance(end, SequenceFinished)
    assert (end.reason, end.num_output_tokens, end.num_prompt_tokens) == ("length", 0, 16)
    assert end.timings.first_token_time is None and end.timings.finish_time == 8.0
    assert not scheduler.has_work() and scheduler.stats().kv_usage == 0


@pytest.mark.parametrize("length", [1, 12, 13, 16])
def test_a_prompt_that_is_all_in_the_cache_ends_too(length: int) -> None:
    scheduler = Scheduler(make_limits())
    for sequence_id in (1, 2):
        scheduler.submit(make_submission(sequence_id, PROMPT[:length], 0), 0.0)
        events = run_until_idle(scheduler)
        assert finished(events).keys() == {sequence_id}
    assert finished(events)[2].num_cached_tokens == (length - 1) // 4 * 4


def test_while_its_last_chunk_is_under_way_it_is_awaited() -> None:
    scheduler = Scheduler(make_limits(pipeline_depth=2))
    scheduler.submit(make_submission(1, PROMPT, 0), 0.0)
    plan = scheduler.schedule(0.0)
    assert plan is not None and plan.acknowledge
    sequence = scheduler._roster.get(1)
    assert sequence is not None and sequence.awaits_result
    assert scheduler._roster.latest_preemptible(step_id=99) is None
    assert scheduler.schedule(0.0) is None, "there is nothing to decode"
    scheduler.check_integrity()
    scheduler.commit(answer(plan), 0.0)
    scheduler.check_integrity()


def test_its_result_is_dropped_after_an_abort() -> None:
    scheduler = Scheduler(make_limits())
    scheduler.submit(make_submission(1, PROMPT, 0), 0.0)
    plan = scheduler.schedule(0.0)
    assert plan is not None
    assert len(scheduler.abort(1, "abort", 0.0)) == 1
    assert scheduler.commit(answer(plan), 0.0) == []
    assert not scheduler.has_work()


def test_it_does_not_hold_other_prompts_to_the_budget_of_decodes() -> None:
    scheduler = Scheduler(make_limits(pipeline_depth=2))
    scheduler.submit(make_submission(1, 4, 0), 0.0)
    first = scheduler.schedule(0.0)
    scheduler.submit(make_submission(2, 100), 0.0)
    assert shape(scheduler.schedule(0.0)) == [(2, 32)]
    assert first is not None
    scheduler.commit(answer(first), 0.0)


@pytest.mark.parametrize("caching", [True, False])
def test_children_that_want_no_token_share_their_prompt(caching: bool) -> None:
    scheduler = Scheduler(make_limits(enable_prefix_caching=caching))
    for sequence_id in (1, 2, 3):
        scheduler.submit(make_submission(sequence_id, PROMPT, 0, group=7), 0.0)
    assert shape(run_step(scheduler)[0]) == [(1, 16), (2, 4), (3, 4)]
    assert not scheduler.has_work()
