from __future__ import annotations

import time

import pytest

from atom_lite.errors import ConfigError, EngineError
from atom_lite.messages import SequenceFinished, StepResult, TokensGenerated
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

# ---------------------------------------------------------------- limits and refusals


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"decode_step_tokens": 7}, "allows 7 tokens .* --max-num-seqs, which is 8"),
        ({"decode_step_tokens": 64}, "at least the 64"),
        ({"max_num_seqs": 0}, "--max-num-seqs is 0"),
        ({"num_blocks": 0}, "KV blocks is 0"),
        ({"block_size": 0}, "--block-size is 0"),
        ({"max_model_len": 1}, "--max-model-len is 1"),
        ({"pipeline_depth": 0}, "in flight is 0"),
        ({"scheduling_policy": "random"}, "'random'"),
    ],
)
def test_limits_under_which_something_could_never_run_are_refused(
    changes: dict[str, int], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Scheduler(make_limits(**changes))


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "message"),
    [
        (256, 4, "maximum context length is 256 tokens but the prompt has 256"),
        (80, 4, "prompt has 80 tokens but the KV cache holds 80"),
        ([], 4, "empty"),
        (4, -1, "max_tokens is -1"),
    ],
)
def test_a_request_that_can_never_run_ends_at_once_with_400(
    prompt: list[int] | int, max_tokens: int, message: str
) -> None:
    scheduler = Scheduler(make_limits(num_blocks=20))
    [event] = scheduler.submit(make_submission(3, prompt, max_tokens), now=5.0)
    assert isinstance(event, SequenceFinished)
    assert (event.sequence_id, event.reason, event.error_status) == (3, "error", 400)
    assert event.error is not None and message in event.error
    assert event.timings.finish_time == 5.0
    assert not scheduler.has_work()


def test_an_id_in_use_is_our_own_fault() -> None:
    scheduler = Scheduler(make_limits())
    scheduler.submit(make_submission(1, 4), 0.0)
    with pytest.raises(EngineError, match="sequence id 1"):
        scheduler.submit(make_submission(1, 4), 0.0)


# ---------------------------------------------------------------- order within a step


def test_worked_example_takes_exactly_four_steps() -> None:
    limits = make_limits(
        max_num_seqs=64,
        decode_step_tokens=2048,
        prefill_step_tokens=16384,
        max_model_len=8192,
        block_size=16,
        num_blocks=4096,
    )
    scheduler = Scheduler(limits)
    for sequence_id in range(12):
        scheduler.submit(make_submission(sequence_id, 10, 1000), 0.0)
    run_step(scheduler)
    a, b, c = 100, 101, 102
    for sequence_id, prompt in ((a, 3072), (b, 2486), (c, 2580)):
        scheduler.submit(make_submission(sequence_id, prompt, 1000), 0.0)
    decodes = [(sequence_id, 1) for sequence_id in range(12)]
    steps = [shape(run_step(scheduler)[0]) for _ in range(5)]
    assert steps == [
        [*decodes, (a, 2036)],
        [*decodes, (a, 1036), (b, 1000)],
        [*decodes, (a, 1), (b, 1486), (c, 549)],
        [*decodes, (a, 1), (b, 1), (c, 2031)],
        [*decodes, (a, 1), (b, 1), (c, 1)],
    ]


def test_only_a_step_without_decodes_may_use_the_larger_budget() -> None:
    scheduler = Scheduler(make_limits())
    scheduler.submit(make_submission(1, 40), 0.0)
    assert shape(run_step(scheduler)[0]) == [(1, 32)]
    assert shape(run_step(scheduler)[0]) == [(1, 8)]
    scheduler.submit(make_submission(2, 40), 0.0)
    assert shape(run_step(scheduler)[0]) == [(1, 1), (2, 15)]


def test_running_sequences_never_exceed_the_limit() -> None:
    scheduler = Scheduler(make_limits(max_num_seqs=2))
    for sequence_id in range(3):
        scheduler.submit(make_submission(sequence_id, 3, max_tokens=2), 0.0)
    assert shape(run_step(scheduler)[0]) == [(0, 3), (1, 3)]
    assert scheduler.stats().num_waiting == 1
    assert shape(run_step(scheduler)[0]) == [(0, 1), (1, 1)]
    assert shape(run_step(scheduler)[0]) == [(2, 3)]


def test_a_long_prompt_delays_short_ones_by_its_chunks_only() -> None:
    scheduler = Scheduler(make_limits(max_num_seqs=16, max_model_len=8192, num_blocks=4096))
    scheduler.submit(make_submission(0, 320), 0.0)
    for sequence_id in range(1, 9):
        scheduler.submit(make_submission(sequence_id, 4), 0.0)
    steps = [shape(run_step(scheduler)[0]) for _ in range(11)]
    assert steps[:10] == [[(0, 32)]] * 10
    assert [sequence_id for sequence_id, _ in steps[10]] == [0, 1, 2, 3, 4]


def test_priority_decides_who_is_admitted_and_fcfs_ignores_it() -> None:
    for policy, first in (("priority", 2), ("fcfs", 1)):
        scheduler = Scheduler(make_limits(max_num_seqs=1, scheduling_policy=policy))
        scheduler.submit(make_submission(1, 4, priority=5), 0.0)
        scheduler.submit(make_submission(2, 4, priority=-1), 0.0)
        assert shape(run_step(scheduler)[0]) == [(first, 4)]


# ---------------------------------------------------------------- whole prompts


def test_without_chunking_a_prompt_above_the_budget_goes_alone_and_whole() -> None:
    scheduler = Scheduler(make_limits(enable_chunked_prefill=False))
    scheduler.submit(make_submission(1, 50), 0.0)
    scheduler.submit(make_submission(2, 4), 0.0)
    assert shape(run_step(scheduler)[0]) == [(1, 50)]
    assert shape(run_step(scheduler)[0]) == [(1, 1), (2, 4)]


def test_without_chunking_decodes_are_held_back_for_one_step_at_a_time() -> None:
    scheduler = Scheduler(make_limits(enable_chunked_prefill=False))
    scheduler.submit(make_submission(0, 4, 20), 0.0)
    run_step(scheduler)
    for sequence_id in (1, 2):
        scheduler.submit(make_submission(sequence_id, 30), 0.0)
    assert [shape(run_step(scheduler)[0]) for _ in range(4)] == [
        [(1, 30)],
        [(0, 1), (1, 1)],
        [(2, 30)],
        [(0, 1), (1, 1), (2, 1)],
    ]


# ---------------------------------------------------------------- plans


def test_a_sequence_is_sent_once_in_full_and_then_as_a_difference() -> None:
    scheduler = Scheduler(make_limits(decode_step_tokens=8, prefill_step_tokens=8))
    scheduler.submit(make_submission(1, list(range(10)), max_tokens=3), 0.0)
    first, _ = run_step(scheduler)
    [start] = first.starts
    assert start.token_ids == list(range(10)) and start.num_prompt_tokens == 10
    [row] = first.rows
    assert (row.start, row.num_tokens, row.sample, row.token_ids) == (0, 8, False, [])
    assert row.new_block_ids == [0, 1]
    second, _ = run_step(scheduler)
    [row] = second.rows
    assert second.starts == []
    assert (row.start, row.num_tokens, row.sample, row.new_block_ids) == (8, 2, True, [2])
    third, _ = run_step(scheduler, token_id=33)
    [row] = third.rows
    assert (row.start, row.num_tokens, row.sample, row.token_ids) == (10, 1, True, [7])
    fourth, _ = run_step(scheduler)
    assert fourth.rows[0].token_ids == [33]


def test_a_started_sequence_does_not_share_its_token_list_with_the_plan() -> None:
    scheduler = Scheduler(make_limits())
    scheduler.submit(make_submission(1, [1, 2, 3]), 0.0)
    plan, _ = run_step(scheduler)
    run_step(scheduler)
    assert plan.starts[0].token_ids == [1, 2, 3]


def test_the_next_plan_tells_the_stages_what_to_forget() -> None:
    scheduler = Scheduler(make_limits())
    scheduler.submit(make_submission(1, 4, max_tokens=1), 0.0)
    run_step(scheduler)
    assert scheduler.schedule(0.0) is None
    scheduler.submit(make_submission(2, 4), 0.0)
    scheduler.submit(make_submission(3, 4), 0.0)
    scheduler.abort(3, "abort", 0.0)  # never sent, hence nothing to forget
    plan, _ = run_step(scheduler)
    assert plan.drops == [(1, 0)]
    assert run_step(scheduler)[0].drops == []


# ---------------------------------------------------------------- events


def test_last_tokens_come_before_the_terminal_event_with_times_and_counts() -> None:
    scheduler = Scheduler(make_limits())
    scheduler.submit(make_submission(1, 4, max_tokens=2), 0.5)
    assert run_step(scheduler, now=2.0)[1] == [TokensGenerated(sequence_id=1, token_ids=[7])]
    tokens, end = run_step(scheduler, now=3.0)[1]
    assert tokens == TokensGenerated(sequence_id=1, token_ids=[7])
    assert isinstance(end, SequenceFinished)
    assert (end.reason, end.num_prompt_tokens, end.num_output_tokens) == ("length", 4, 2)
    times = end.timings
    assert (times.arrival_time, times.first_scheduled_time) == (1.0, 2.0)
    assert (times.first_token_time, times.finish_time) == (2.0, 3.0)
    assert not scheduler.has_work()


def test_a_result_out_of_order_is_an_engine_error() -> None:
    scheduler = Scheduler(make_limits())
    scheduler.submit(make_submission(1, 4), 0.0)
    with pytest.raises(EngineError, match="oldest step in flight is None"):
        scheduler.commit(StepResult(step_id=0, tokens=[]), 0.0)
    plan = scheduler.schedule(0.0)
    assert plan is not None
    with pytest.raises(EngineError, match="result of step 5"):
        scheduler.commit(StepResult(step_id=5, tokens=[]), 0.0)


def test_a_missing_token_is_an_engine_error() -> None:
    scheduler = Scheduler(make_limits())
    scheduler.submit(make_submission(1, 4), 0.0)
    plan = scheduler.schedule(0.0)
    assert plan is not None
    with pytest.raises(EngineError, match="lacks the token of sequence 1"):
        scheduler.commit(StepResult(step_id=plan.step_id, tokens=[]), 0.0)


def test_output_is_capped_by_the_model_length() -> None:
    scheduler = Scheduler(make_limits(max_model_len=10))
    scheduler.submit(make_submission(1, 7, max_tokens=100), 0.0)
    end = finished(run_until_idle(scheduler))[1]
    assert (end.reason, end.num_output_tokens) == ("length", 3)


def test_a_sequence_that_outgrows_the_whole_pool_ends_with_length() -> None:
    scheduler = Scheduler(make_limits(num_blocks=3))
    scheduler.submit(make_submission(1, 7, max_tokens=100), 0.0)
    end = finished(run_until_idle(scheduler))[1]
    assert (end.reason, end.num_output_tokens, end.num_preemptions) == ("length", 6, 0)


# ---------------------------------------------------------------- aborts


def test_an_abort_frees_all_and_is_answered_once() -> None:
    scheduler = Scheduler(make_limits())
    for sequence_id in (1, 2):
        scheduler.submit(make_submission(sequence_id, 4, 50), 0.0)
    run_step(scheduler)
    [end] = scheduler.abort(1, "abort", 4.0)
    assert isinstance(end, SequenceFinished) and end.reason == "abort"
    assert end.num_output_tokens == 1
    assert scheduler.abort(1, "abort", 4.0) == []
    scheduler.check_integrity()
    assert shape(run_step(scheduler)[0]) == [(2, 1)]
    [end] = scheduler.abort(2, "stop", 4.0)
    assert isinstance(end, SequenceFinished) and end.reason == "stop"
    assert scheduler.stats().kv_usage == 0 and scheduler.stats().num_running == 0


def test_no_token_follows_an_abort_while_the_last_chunk_is_in_flight() -> None:
    scheduler = Scheduler(make_limits())
    scheduler.submit(make_submission(1, 40), 0.0)
    run_step(scheduler)
    plan = scheduler.schedule(0.0)
    assert plan is not None and plan.rows[0].sample
    scheduler.abort(1, "abort", 0.0)
    assert scheduler.has_work(), "the result is still to come"
    assert scheduler.commit(answer(plan), 0.0) == []
    assert not scheduler.has_work()


def test_aborting_a_waiting_sequence_lets_the_next_one_in() -> None:
    scheduler = Scheduler(make_limits(max_num_seqs=1))
    for sequence_id in (1, 2, 3):
        scheduler.submit(make_submission(sequence_id, 4, max_tokens=1), 0.0)
    scheduler.abort(1, "abort", 0.0)
    assert shape(run_step(scheduler)[0]) == [(2, 4)]


def test_abort_all_ends_everything_with_the_engine_error() -> None:
    scheduler = Scheduler(make_limits(max_num_seqs=1))
    for sequence_id in (1, 2):
        scheduler.submit(make_submission(sequence_id, 4), 0.0)
    plan = scheduler.schedule(0.0)
    assert plan is not None
    ends = finished(scheduler.abort_all(1.0, error="the stage died"))
    assert {(e.reason, e.error, e.error_status) for e in ends.values()} == {
        ("error", "the stage died", 500)
    }
    assert ends.keys() == {1, 2}
    assert scheduler.commit(answer(plan), 0.0) == []
    assert not scheduler.has_work()


def test_abort_all_at_shutdown_says_abort() -> None:
    scheduler = Scheduler(make_limits())
    scheduler.submit(make_submission(1, 4), 0.0)
    assert finished(scheduler.abort_all(1.0))[1].reason == "abort"


# ---------------------------------------------------------------- statistics


def test_stats_count_steps_tokens_and_usage() -> None:
    scheduler = Scheduler(make_limits(num_blocks=10))
    scheduler.submit(make_submission(1, 8, max_tokens=3), 0.0)
    run_step(scheduler)
    run_step(scheduler)
    stats = scheduler.stats()
    assert (stats.num_running, stats.num_waiting, stats.kv_usage) == (1, 0, 0.3)
    assert (stats.num_steps, stats.prompt_tokens_computed, stats.output_tokens) == (2, 8, 2)
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (8, 0)


def test_eos_ends_a_sequence_and_is_delivered() -> None:
    scheduler = Scheduler(make_limits())
    scheduler.submit(make_submission(1, 4), 0.0)
    _, events = run_step(scheduler, token_id=EOS)
    assert output_tokens(events) == {1: [EOS]}
    assert finished(events)[1].reason == "stop"


def test_a_step_costs_in_proportion_to_its_sequences() -> None:
    """Eight times the sequences take about 8 times as long; 64 times would be quadratic."""

    def seconds(num_seqs: int) -> float:
        limits = make_limits(
            max_num_seqs=num_seqs,
            decode_step_tokens=4096,
            prefill_step_tokens=4096,
            num_blocks=1 << 16,
        )
        scheduler = Scheduler(limits, planner=CappedChunks(1))
        for sequence_id in range(num_seqs):
            scheduler.submit(make_submission(sequence_id, 40), 0.0)
        started = time.thread_time()
        for _ in ("all are admitted", "all go on"):
            plan = scheduler.schedule(0.0)
            assert plan is not None and len(plan.rows) == num_seqs
            scheduler.commit(answer(plan), 0.0)
        return time.thread_time() - started

    few, many = (min(seconds(count) for _ in range(3)) for count in (100, 800))
    assert many < 30 * few
