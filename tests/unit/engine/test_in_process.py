"""The head's loop through the in-process Engine, over a runner without a model."""

from __future__ import annotations

import dataclasses
import threading
from typing import TYPE_CHECKING, Any

import pytest

from atom_lite.engine.in_process import Engine
from atom_lite.errors import ConfigError, EngineError
from atom_lite.messages import (
    EngineReady,
    PromptLogprobs,
    SamplingParams,
    SequenceFinished,
    StepPlan,
    TokensGenerated,
)
from atom_lite.scheduler.scheduler import SchedulerLimits
from tests.fakes.counting_runner import FIRST_TOKEN, CountingRunner, say

if TYPE_CHECKING:
    from collections.abc import Callable

LIMITS = SchedulerLimits(
    max_num_seqs=8,
    decode_step_tokens=32,
    prefill_step_tokens=64,
    max_model_len=1000,
    block_size=16,
    num_blocks=100,
    eos_token_ids=frozenset({2}),
)
READY = EngineReady(
    vocab_size=1000,
    max_model_len=1000,
    eos_token_ids=[2],
    block_size=16,
    num_blocks=100,
    max_num_seqs=8,
    max_num_batched_tokens=32,
    device="cpu",
    dtype="float32",
    architecture="fake",
    default_sampling={},
    memory_bytes={},
)


def make_engine(before_step: Callable[[StepPlan], None] | None = None) -> Engine:
    return Engine.from_parts(LIMITS, CountingRunner(before_step), READY)


def params(max_tokens: int = 5, **fields: Any) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, **fields)


def expected(count: int) -> list[int]:
    return list(range(FIRST_TOKEN, FIRST_TOKEN + count))


def test_events_are_the_tokens_and_then_one_end() -> None:
    with make_engine() as engine:
        events = list(engine.generate([5] * 100, params()))
    tokens = [
        t for event in events[:-1] if isinstance(event, TokensGenerated) for t in event.token_ids
    ]
    assert tokens == expected(5)
    end = events[-1]
    assert isinstance(end, SequenceFinished)
    assert (end.reason, end.num_prompt_tokens, end.num_output_tokens) == ("length", 100, 5)


def test_log_probabilities_of_a_prompt_come_before_its_tokens() -> None:
    sampling = params(2, num_logprobs=0, num_prompt_logprobs=0)
    with make_engine() as engine:
        events = list(engine.generate(list(range(100)), sampling))
    told = [event for event in events if isinstance(event, PromptLogprobs)]
    assert events[: len(told)] == told
    assert [event.start for event in told] == [1, 65]
    assert [p for event in told for p in event.positions] == [say(token) for token in range(1, 100)]
    tokens = [event for event in events if isinstance(event, TokensGenerated)]
    assert [event.logprobs for event in tokens] == [[say(FIRST_TOKEN)], [say(FIRST_TOKEN + 1)]]


def test_a_prompt_that_wants_no_token_ends_once_it_is_computed() -> None:
    with make_engine() as engine:
        told, end = engine.generate([5] * 30, params(0, num_prompt_logprobs=0))
    assert isinstance(told, PromptLogprobs) and len(told.positions) == 29
    assert isinstance(end, SequenceFinished)
    assert (end.reason, end.num_output_tokens) == ("length", 0)


def test_a_group_computes_its_prompt_once_without_a_prefix_cache() -> None:
    limits = dataclasses.replace(LIMITS, enable_prefix_caching=False)
    with Engine.from_parts(limits, CountingRunner(), READY) as engine:
        ids = [engine.submit([5] * 50, params(3), group=0) for _ in range(4)]
        ends = [list(engine.events(i))[-1] for i in ids]
        computed = engine.scheduler.stats().prompt_tokens_computed
    cached = [end.num_cached_tokens for end in ends if isinstance(end, SequenceFinished)]
    assert cached == [0, 48, 48, 48] and computed == 50 + 3 * 2


def test_many_sequences_at_once_all_end() -> None:
    with make_engine() as engine:
        ids = [engine.submit([7] * n, params(n % 9 + 1)) for n in range(1, 60)]
        assert [engine.collect(i) for i in ids] == [expected(n % 9 + 1) for n in range(1, 60)]
        engine.scheduler.check_integrity()


def test_refused_sequence_gets_its_error_and_the_next_one_works() -> None:
    with make_engine() as engine:
        (event,) = list(engine.generate([5] * 1001, params()))
        assert isinstance(event, SequenceFinished)
        assert (event.reason, event.error_status) == ("error", 400)
        assert "1001" in (event.error or "")
        assert engine.complete([5], params(1)) == expected(1)


def test_abort_takes_effect_while_a_step_is_running() -> None:
    entered, release = threading.Event(), threading.Event()

    def block(plan: StepPlan) -> None:
        entered.set()
        assert release.wait(20)

    with make_engine(block) as engine:
        sequence = engine.submit([5] * 10, params(50))
        assert entered.wait(20)
        engine.abort(sequence)
        events = list(engine.events(sequence))  # ends although the step still runs
        assert [type(event) for event in events] == [SequenceFinished]
        release.set()
        assert engine.complete([5], params(2)) == expected(2)
        engine.scheduler.check_integrity()


def test_failed_step_ends_every_sequence_with_an_error() -> None:
    def fail(plan: StepPlan) -> None:
        if plan.step_id >= 3:
            raise RuntimeError("the device is on fire")

    engine = make_engine(fail)
    ids = [engine.submit([5] * 10, params(50)) for _ in range(4)]
    for sequence in ids:
        with pytest.raises(EngineError, match="on fire"):
            engine.collect(sequence)
    with pytest.raises(EngineError):
        while True:  # the reader thread may need a moment to learn of it
            engine.complete([5], params(1))
    engine.close()


def test_close_aborts_what_runs() -> None:
    engine = make_engine()
    sequence = engine.submit([5] * 10, params(900))
    events = engine.events(sequence)
    next(events)
    engine.close()
    last = list(events)[-1]
    assert isinstance(last, SequenceFinished)
    assert last.reason == "abort"


def test_the_model_runs_on_one_thread_that_is_not_the_heads() -> None:
    runner = CountingRunner()
    with Engine.from_parts(LIMITS, runner, READY) as engine:
        engine.complete([5] * 40, params())
    assert len(runner.threads) == 1
    assert threading.get_ident() not in runner.threads


def test_leaving_the_events_early_ends_the_sequence() -> None:
    with make_engine() as engine:
        events = engine.generate([5] * 10, params(900))
        next(events)
        events.close()
        engine.complete([5], params(1))  # messages are taken in order, so the abort was too
        assert engine.scheduler.stats().num_running == 0


def test_no_thread_outlives_a_failed_engine() -> None:
    def fail(plan: StepPlan) -> None:
        raise RuntimeError("the device is on fire")

    before = set(threading.enumerate())
    with make_engine(fail) as engine, pytest.raises(EngineError, match="on fire"):
        engine.complete([5], params(1))
    assert set(threading.enumerate()) <= before


def test_no_thread_is_started_under_impossible_limits() -> None:
    before = set(threading.enumerate())
    limits = dataclasses.replace(LIMITS, max_model_len=1)
    with pytest.raises(ConfigError, match="--max-model-len is 1"):
        Engine.from_parts(limits, CountingRunner(), READY)
    assert set(threading.enumerate()) <= before
