"""Short blocks: who gives way, who gets in, and that it ends."""

from __future__ import annotations

from atom_lite.messages import SequenceEvent, StepPlan, TokensGenerated
from atom_lite.scheduler.scheduler import Scheduler
from tests.fakes.scheduler_inputs import (
    EOS,
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


def drive(scheduler: Scheduler, pipeline: VirtualPipeline) -> list[SequenceEvent]:
    """Run to the end on one stage that checks every KV read."""
    events: list[SequenceEvent] = []
    for _ in range(2000):
        plan = scheduler.schedule(0.0)
        if plan is None:
            break
        pipeline.send(plan)
        result = pipeline.finish_oldest()
        assert result is not None
        scheduler.check_integrity()
        events += scheduler.commit(result, 0.0)
    assert not scheduler.has_work()
    return events


def test_two_that_do_not_fit_together_both_give_their_solo_output() -> None:
    limits = make_limits(
        block_size=16, num_blocks=10, decode_step_tokens=64, prefill_step_tokens=64
    )
    scheduler = Scheduler(limits)
    messages = [make_submission(i, 60, 60, ignore_eos=True) for i in (1, 2)]
    for message in messages:
        scheduler.submit(message, 0.0)
    events = drive(scheduler, VirtualPipeline(1, 10, 16))
    outputs = output_tokens(events)
    for message in messages:
        assert outputs[message.sequence_id] == expected_output(message, 60)
    ends = finished(events)
    assert (ends[1].num_preemptions, ends[2].num_preemptions) == (0, 1)
    assert scheduler.stats().num_preemptions == 1


def test_the_latest_arrival_gives_way_and_returns_to_its_own_place() -> None:
    scheduler = Scheduler(make_limits(num_blocks=8, max_num_seqs=3))
    for sequence_id in (1, 2, 3):
        scheduler.submit(make_submission(sequence_id, 7, 20), 0.0)
    assert shape(run_step(scheduler)[0]) == [(1, 7), (2, 7), (3, 7)]
    scheduler.submit(make_submission(4, 4, 20), 0.0)
    assert shape(run_step(scheduler)[0]) == [(1, 1), (2, 1), (3, 1)]
    plan, _ = run_step(scheduler)
    assert shape(plan) == [(1, 1), (2, 1)], "3 gives way to both; 4 is behind 3"
    assert plan.drops == [(3, 0)]
    assert scheduler.stats().num_waiting == 2


def test_the_lowest_priority_gives_way() -> None:
    scheduler = Scheduler(make_limits(num_blocks=5, scheduling_policy="priority"))
    scheduler.submit(make_submission(1, 7, 20, priority=1), 0.0)
    scheduler.submit(make_submission(2, 7, 20, priority=0), 0.0)
    assert shape(run_step(scheduler)[0]) == [(2, 7), (1, 7)]
    run_step(scheduler)
    plan, _ = run_step(scheduler)
    assert shape(plan) == [(2, 1)] and plan.drops == [(1, 0)]


def test_a_resumed_sequence_is_sent_again_with_its_output_and_a_new_epoch() -> None:
    scheduler = Scheduler(make_limits(num_blocks=5, enable_prefix_caching=False))
    scheduler.submit(make_submission(1, 7, 3), 0.0)
    scheduler.submit(make_submission(2, list(range(7)), 8), 0.0)
    run_step(scheduler)
    run_step(scheduler)
    plan, events = run_step(scheduler)
    assert plan.drops == [(2, 0)] and finished(events).keys() == {1}
    plan, _ = run_step(scheduler)
    [start] = plan.starts
    assert (start.epoch, start.num_prompt_tokens) == (1, 7)
    assert start.token_ids == [*range(7), 7, 7]
    [row] = plan.rows
    assert (row.epoch, row.start, row.num_tokens, row.token_ids) == (1, 0, 9, [])
    assert finished(run_until_idle(scheduler))[2].num_output_tokens == 8


def test_recomputation_after_preemption_is_no_cache_hit() -> None:
    scheduler = Scheduler(make_limits(num_blocks=5))
    scheduler.submit(make_submission(1, 7, 3), 0.0)
    scheduler.submit(make_submission(2, 7, 8), 0.0)
    events = run_until_idle(scheduler)
    end = finished(events)[2]
    assert end.num_preemptions == 1 and end.num_cached_tokens == 0
    assert all(e.num_cached_tokens == 0 for e in events if isinstance(e, TokensGenerated))
    assert scheduler.stats().prefix_cache_hits == 0


def test_a_prompt_is_admitted_only_with_room_for_itself_and_partial_prefills() -> None:
    for num_blocks, beside in ((16, []), (17, [(2, 8)])):
        scheduler = Scheduler(make_limits(num_blocks=num_blocks), planner=CappedChunks(8))
        scheduler.submit(make_submission(1, 39, 2), 0.0)  # 10 blocks with its first output token
        scheduler.submit(make_submission(2, 27, 2), 0.0)  # 7
        assert shape(run_step(scheduler)[0]) == [(1, 8), *beside]
        run_until_idle(scheduler)
        assert scheduler.stats().num_preemptions == 0


def test_a_prompt_is_admitted_only_with_one_more_block_for_each_decode() -> None:
    for num_blocks, beside in ((7, []), (8, [(3, 7)])):
        scheduler = Scheduler(make_limits(num_blocks=num_blocks))
        for sequence_id in (1, 2):
            scheduler.submit(make_submission(sequence_id, 6, 3), 0.0)
        run_step(scheduler)
        scheduler.submit(make_submission(3, 7, 2), 0.0)
        assert shape(run_step(scheduler)[0]) == [(1, 1), (2, 1), *beside]
        run_until_idle(scheduler)


def test_idle_cached_blocks_that_a_prompt_hits_are_not_counted_as_room_twice() -> None:
    scheduler = Scheduler(make_limits(num_blocks=8))
    scheduler.submit(make_submission(1, list(range(16)), 1), 0.0)
    run_until_idle(scheduler)
    scheduler.submit(make_submission(2, 9, 12), 0.0)  # takes 3 of 4 free blocks
    run_step(scheduler)
    scheduler.submit(make_submission(3, list(range(20)), 1), 0.0)
    # 3 needs 6 blocks; 5 are available, 4 of them its own hits.
    assert shape(run_step(scheduler)[0]) == [(2, 1)]
    run_until_idle(scheduler)


def test_blocks_held_by_another_cost_a_twin_nothing() -> None:
    scheduler = Scheduler(make_limits(num_blocks=8))
    scheduler.submit(make_submission(1, list(range(16)), 4), 0.0)
    run_step(scheduler)
    scheduler.submit(make_submission(2, [*range(16), 1, 2], 1), 0.0)  # 5 blocks, 4 of them held
    assert shape(run_step(scheduler)[0]) == [(1, 1), (2, 2)]


def test_small_budget_and_pool_make_progress_with_few_preemptions() -> None:
    limits = make_limits(
        max_num_seqs=4, decode_step_tokens=4, prefill_step_tokens=4, num_blocks=12, block_size=4
    )
    scheduler = Scheduler(limits)
    messages = [make_submission(i, 14, 16, ignore_eos=True) for i in range(6)]
    for message in messages:
        scheduler.submit(message, 0.0)
    events = drive(scheduler, VirtualPipeline(1, 12, 4))
    outputs = output_tokens(events)
    for message in messages:
        assert outputs[message.sequence_id] == expected_output(message, 16)
    assert 1 <= scheduler.stats().num_preemptions <= len(messages)


def test_a_partial_prefill_waits_while_decodes_have_used_up_its_blocks() -> None:
    scheduler = Scheduler(make_limits(num_blocks=12), planner=CappedChunks(2))
    pipeline = VirtualPipeline(1, 12, 4)
    messages = [make_submission(1, 4, 40, ignore_eos=True), make_submission(2, 37, 3)]
    for message in messages:
        scheduler.submit(message, 0.0)
    events: list[SequenceEvent] = []
    waited = False
    while (plan := scheduler.schedule(0.0)) is not None:
        partial = bool(scheduler.stats().num_running == 2 and len(plan.rows) == 1)
        waited |= partial and not plan.drops
        pipeline.send(plan)
        result = pipeline.finish_oldest()
        assert result is not None
        events += scheduler.commit(result, 0.0)
        scheduler.check_integrity()
    assert waited and not scheduler.has_work()
    outputs = output_tokens(events)
    assert outputs[1] == expected_output(messages[0], 40)
    assert outputs[2] == expected_output(messages[1], 3, frozenset({EOS}))


def test_a_later_sequence_with_a_decode_in_flight_is_awaited_and_then_gives_way() -> None:
    scheduler = Scheduler(make_limits(num_blocks=6, pipeline_depth=2))
    scheduler.submit(make_submission(1, 8, 20), 0.0)
    scheduler.submit(make_submission(2, 7, 20), 0.0)
    in_flight: list[StepPlan] = []
    for _ in range(20):
        while (plan := scheduler.schedule(0.0)) is not None:
            in_flight.append(plan)
        if len(in_flight) == 1 and scheduler.stats().kv_usage == 1.0:
            break  # 1 needs a block, 2 has the last one and a decode in flight
        scheduler.commit(answer(in_flight.pop(0)), 0.0)
    assert shape(in_flight[0]) == [(2, 1)]
    scheduler.commit(answer(in_flight[0]), 0.0)
    plan = scheduler.schedule(0.0)
    assert shape(plan) == [(1, 1)] and plan is not None and plan.drops == [(2, 0)]
    scheduler.check_integrity()
