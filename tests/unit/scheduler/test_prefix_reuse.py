"""Prefix cache hits as the scheduler uses them."""

from __future__ import annotations

import pytest

from atom_lite.messages import TokensGenerated
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


@pytest.mark.parametrize(("length", "cached"), [(16, 12), (15, 12), (17, 16), (4, 0), (5, 4)])
def test_at_least_the_last_prompt_token_is_computed_again(length: int, cached: int) -> None:
    scheduler = Scheduler(make_limits())
    prompt = list(range(length))
    scheduler.submit(make_submission(1, prompt, max_tokens=1), 0.0)
    run_until_idle(scheduler)
    scheduler.submit(make_submission(2, prompt, max_tokens=2), 0.0)
    assert scheduler.cached_tokens(2) == cached
    plan, events = run_step(scheduler)
    [row] = plan.rows
    assert (row.start, row.num_tokens) == (cached, length - cached)
    assert len(row.new_block_ids) == -(-length // 4), "cached blocks are in the first row"
    assert events == [TokensGenerated(sequence_id=2, token_ids=[7], num_cached_tokens=cached)]
    events = run_until_idle(scheduler)
    assert events[0] == TokensGenerated(sequence_id=2, token_ids=[7])
    assert finished(events)[2].num_cached_tokens == cached


def test_twins_share_a_prompt_that_is_registered_when_scheduled() -> None:
    scheduler = Scheduler(make_limits())
    for sequence_id in (1, 2, 3):
        scheduler.submit(make_submission(sequence_id, PROMPT), 0.0)
    plan, _ = run_step(scheduler)
    assert shape(plan) == [(1, 16), (2, 4), (3, 4)]
    tables = [row.new_block_ids for row in plan.rows]
    assert tables == [[0, 1, 2, 3], [0, 1, 2, 4], [0, 1, 2, 5]]


def test_generated_blocks_are_hit_by_the_next_turn_of_a_conversation() -> None:
    scheduler = Scheduler(make_limits())
    scheduler.submit(make_submission(1, PROMPT, max_tokens=6), 0.0)
    run_until_idle(scheduler)
    scheduler.submit(make_submission(2, [*PROMPT, 7, 7, 7, 7, 7, 7, 1], max_tokens=1), 0.0)
    plan, _ = run_step(scheduler)
    assert plan.rows[0].start == 20, "16 of the prompt, 4 of the answer; 2 are no full block"


def test_a_block_whose_kv_is_not_written_is_not_hit() -> None:
    scheduler = Scheduler(make_limits())
    scheduler.submit(make_submission(1, PROMPT, max_tokens=4), 0.0)
    run_until_idle(scheduler)
    scheduler.submit(make_submission(2, [*PROMPT, 7, 7, 7, 7, 1], max_tokens=1), 0.0)
    plan, _ = run_step(scheduler)
    assert plan.rows[0].start == 16, "the last drawn token was never computed"


def test_salts_isolate() -> None:
    scheduler = Scheduler(make_limits())
    for sequence_id, salt in enumerate((None, "a", "b", "a")):
        scheduler.submit(make_submission(sequence_id, PROMPT, 1, cache_salt=salt), 0.0)
    starts = {r.sequence_id: r.start for r in run_step(scheduler)[0].rows}
    while scheduler.has_work():
        starts |= {r.sequence_id: r.start for r in run_step(scheduler)[0].rows}
    assert starts == {0: 0, 1: 0, 2: 0, 3: 12}


def test_reset_forgets_what_no_running_sequence_holds() -> None:
    scheduler = Scheduler(make_limits())
    scheduler.submit(make_submission(1, PROMPT, max_tokens=1), 0.0)
    run_until_idle(scheduler)
    scheduler.reset_prefix_cache()
    scheduler.submit(make_submission(2, PROMPT, max_tokens=1), 0.0)
    assert run_step(scheduler)[0].rows[0].start == 0


def test_without_a_cache_nothing_is_shared_or_counted() -> None:
    scheduler = Scheduler(make_limits(enable_prefix_caching=False))
    for sequence_id in (1, 2):
        scheduler.submit(make_submission(sequence_id, PROMPT, max_tokens=1), 0.0)
    assert shape(run_step(scheduler)[0]) == [(1, 16), (2, 16)]
    assert scheduler.stats().prefix_cache_queries == 0


def test_hits_are_counted_in_tokens() -> None:
    scheduler = Scheduler(make_limits())
    for sequence_id in (1, 2):
        scheduler.submit(make_submission(sequence_id, PROMPT, max_tokens=1), 0.0)
    run_until_idle(scheduler)
    stats = scheduler.stats()
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (32, 12)


def test_a_twin_waits_while_its_next_block_is_being_computed() -> None:
    scheduler = Scheduler(make_limits(), planner=CappedChunks(8))
    scheduler.submit(make_submission(1, PROMPT), 0.0)
    scheduler.submit(make_submission(2, PROMPT), 0.0)
    assert shape(run_step(scheduler)[0]) == [(1, 8)]
    assert shape(run_step(scheduler)[0]) == [(1, 8), (2, 4)]


def test_a_prompt_that_differs_from_a_partial_one_does_not_wait_for_it() -> None:
    scheduler = Scheduler(make_limits(), planner=CappedChunks(8))
    scheduler.submit(make_submission(1, PROMPT), 0.0)
    scheduler.submit(make_submission(2, [*PROMPT[:8], *range(50, 58)]), 0.0)
    assert shape(run_step(scheduler)[0]) == [(1, 8), (2, 8)]


def test_a_later_step_hits_blocks_of_one_that_is_still_in_flight() -> None:
    scheduler = Scheduler(make_limits(pipeline_depth=2))
    scheduler.submit(make_submission(1, PROMPT), 0.0)
    first = scheduler.schedule(0.0)
    scheduler.submit(make_submission(2, PROMPT), 0.0)
    second = scheduler.schedule(0.0)
    assert shape(first) == [(1, 16)] and shape(second) == [(2, 4)]
    assert second is not None and second.rows[0].new_block_ids[:3] == [0, 1, 2]


def test_a_prompt_aborted_in_flight_leaves_valid_hits() -> None:
    scheduler = Scheduler(make_limits(pipeline_depth=2))
    scheduler.submit(make_submission(1, PROMPT), 0.0)
    first = scheduler.schedule(0.0)
    assert first is not None
    scheduler.abort(1, "abort", 0.0)
    scheduler.submit(make_submission(2, PROMPT), 0.0)
    second = scheduler.schedule(0.0)
    assert second is not None
    assert second.drops == [(1, 0)] and second.rows[0].start == 12
    assert scheduler.commit(answer(first), 0.0) == []
    assert len(scheduler.commit(answer(second), 0.0)) == 1
