"""Children of one request share its prompt's blocks, also where the prefix cache is off."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from atom_lite.scheduler.scheduler import Scheduler
from tests.fakes.scheduler_inputs import (
    CappedChunks,
    answer,
    finished,
    make_limits,
    make_submission,
    output_tokens,
    run_step,
    run_until_idle,
    shape,
)
from tests.fakes.virtual_pipeline import VirtualPipeline, expected_output

if TYPE_CHECKING:
    from atom_lite.messages import StepPlan, SubmitSequence

PROMPT = list(range(16))
CACHE_ON_AND_OFF = pytest.mark.parametrize("caching", [True, False], ids=["cache", "no_cache"])


def children(
    count: int, prompt: list[int] = PROMPT, max_tokens: int = 4, *, first: int = 1
) -> list[SubmitSequence]:
    return [
        make_submission(i, prompt, max_tokens, group=first, ignore_eos=True)
        for i in range(first, first + count)
    ]


def submit(scheduler: Scheduler, messages: list[SubmitSequence]) -> None:
    for message in messages:
        assert scheduler.submit(message, 0.0) == []


def num_free_names(scheduler: Scheduler) -> int:
    """Blocks that could be hit though nobody holds them."""
    return len(scheduler._allocator.names())


@CACHE_ON_AND_OFF
def test_children_start_from_the_blocks_of_the_first(caching: bool) -> None:
    scheduler = Scheduler(make_limits(enable_prefix_caching=caching))
    submit(scheduler, children(3))
    plan, _ = run_step(scheduler)
    assert shape(plan) == [(1, 16), (2, 4), (3, 4)]
    tables = [row.new_block_ids for row in plan.rows]
    assert tables == [[0, 1, 2, 3], [0, 1, 2, 4], [0, 1, 2, 5]]
    ends = finished(run_until_idle(scheduler))
    assert [ends[i].num_cached_tokens for i in (1, 2, 3)] == [0, 12, 12]
    assert scheduler.stats().prompt_tokens_computed == 16 + 4 + 4


@CACHE_ON_AND_OFF
def test_children_wait_while_the_first_computes_what_they_need_next(caching: bool) -> None:
    scheduler = Scheduler(make_limits(enable_prefix_caching=caching), planner=CappedChunks(8))
    submit(scheduler, children(3))
    assert shape(run_step(scheduler)[0]) == [(1, 8)]
    assert shape(run_step(scheduler)[0]) == [(1, 8), (2, 4), (3, 4)]


@CACHE_ON_AND_OFF
@pytest.mark.parametrize("length", [1, 3, 4])
def test_a_prompt_without_a_block_to_share_is_computed_by_each(caching: bool, length: int) -> None:
    scheduler = Scheduler(make_limits(enable_prefix_caching=caching))
    submit(scheduler, children(2, PROMPT[:length]))
    assert shape(run_step(scheduler)[0]) == [(1, length), (2, length)]
    run_until_idle(scheduler)


@CACHE_ON_AND_OFF
def test_the_next_child_takes_over_from_one_that_was_aborted(caching: bool) -> None:
    scheduler = Scheduler(make_limits(enable_prefix_caching=caching), planner=CappedChunks(4))
    submit(scheduler, children(3))
    run_step(scheduler)
    scheduler.abort(1, "abort", 0.0)
    plan, _ = run_step(scheduler)
    assert plan.drops == [(1, 0)]
    [row] = plan.rows
    assert (row.sequence_id, row.start, row.num_tokens) == (2, 4, 4), "3 waits for 2 now"
    assert shape(run_step(scheduler)[0]) == [(2, 4), (3, 4)]


@CACHE_ON_AND_OFF
def test_a_prompt_is_computed_once_even_if_children_run_one_after_the_other(caching: bool) -> None:
    scheduler = Scheduler(make_limits(enable_prefix_caching=caching, max_num_seqs=1))
    submit(scheduler, children(3, max_tokens=9))
    ends = finished(run_until_idle(scheduler))
    assert [ends[i].num_cached_tokens for i in (1, 2, 3)] == [0, 12, 12]


def test_without_a_cache_other_requests_neither_hit_nor_wait() -> None:
    scheduler = Scheduler(make_limits(enable_prefix_caching=False), planner=CappedChunks(8))
    submit(scheduler, children(2))
    submit(scheduler, children(2, first=3))
    submit(scheduler, [make_submission(5, PROMPT)])
    assert shape(run_step(scheduler)[0]) == [(1, 8)], "2 waits, and who is behind it"
    plan, _ = run_step(scheduler)
    assert shape(plan) == [(1, 8), (2, 4), (3, 8)]
    starts = {}
    while scheduler.has_work():
        for row in run_step(scheduler)[0].rows:
            starts.setdefault(row.sequence_id, row.start)
    assert (starts[4], starts[5]) == (12, 0)


def test_without_a_cache_nothing_of_a_group_stays_after_its_last() -> None:
    scheduler = Scheduler(make_limits(enable_prefix_caching=False))
    submit(scheduler, children(2))
    run_step(scheduler)
    scheduler.abort(1, "abort", 0.0)
    assert num_free_names(scheduler) == 4, "one more may come that needs them"
    run_until_idle(scheduler)
    assert num_free_names(scheduler) == 0
    scheduler.check_integrity()
    submit(scheduler, children(1))  # its id is another run's: nothing is left to hit
    plan, _ = run_step(scheduler)
    assert plan.rows[0].start == 0 and plan.rows[0].new_block_ids == [0, 1, 2, 3]
    assert scheduler.stats().prefix_cache_queries == 0


def test_without_a_cache_a_group_that_never_ran_leaves_nothing() -> None:
    scheduler = Scheduler(make_limits(enable_prefix_caching=False, max_num_seqs=1))
    submit(scheduler, [make_submission(9, 4, 20)])
    run_step(scheduler)
    submit(scheduler, children(2))
    for sequence_id in (1, 2):
        scheduler.abort(sequence_id, "abort", 0.0)
        scheduler.check_integrity()
    run_until_idle(scheduler)


def test_without_a_cache_output_is_not_shared() -> None:
    scheduler = Scheduler(make_limits(enable_prefix_caching=False, max_num_seqs=1))
    submit(scheduler, children(2, max_tokens=12))
    names = set()
    while scheduler.has_work():
        run_step(scheduler)
        names |= scheduler._allocator.names()
    assert len(names) == 4, "the full blocks of the prompt, not those of the output"


@CACHE_ON_AND_OFF
def test_field_74_two_children_that_do_not_fit_together_finish_as_if_alone(caching: bool) -> None:
    limits = make_limits(
        block_size=16,
        num_blocks=10,
        decode_step_tokens=64,
        prefill_step_tokens=64,
        enable_prefix_caching=caching,
    )
    scheduler = Scheduler(limits)
    messages = children(2, [7 + i % 9 for i in range(60)], 60)
    submit(scheduler, messages)
    pipeline = VirtualPipeline(1, 10, 16)
    events = []
    while (plan := scheduler.schedule(0.0)) is not None:
        pipeline.send(plan)
        result = pipeline.finish_oldest()
        assert result is not None
        events += scheduler.commit(result, 0.0)
        scheduler.check_integrity()
    assert not scheduler.has_work()
    outputs = output_tokens(events)
    assert [outputs[m.sequence_id] for m in messages] == [expected_output(m, 60) for m in messages]
    assert scheduler.stats().num_preemptions >= 1
    assert finished(events)[2].num_cached_tokens == 48


def test_a_later_step_hits_a_childs_block_that_is_still_in_flight() -> None:
    scheduler = Scheduler(make_limits(pipeline_depth=2, enable_prefix_caching=False))
    submit(scheduler, children(1))
    first = scheduler.schedule(0.0)
    submit(scheduler, children(2)[1:])
    second = scheduler.schedule(0.0)
    assert first is not None and second is not None
    assert second.rows[0].new_block_ids[:3] == [0, 1, 2]
    commit_all(scheduler, [first, second])


def commit_all(scheduler: Scheduler, plans: list[StepPlan]) -> None:
    for plan in plans:
        scheduler.commit(answer(plan), 0.0)
        scheduler.check_integrity()


def test_integrity_check_sees_a_block_that_strangers_share() -> None:
    scheduler = Scheduler(make_limits(enable_prefix_caching=False))
    submit(scheduler, children(2))
    run_step(scheduler)
    sequence = scheduler._roster.get(2)
    assert sequence is not None
    sequence.root_digest = b"another"
    with pytest.raises(AssertionError, match="strangers share block 0"):
        scheduler.check_integrity()
