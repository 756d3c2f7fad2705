"""Log probabilities of prompt tokens come once each and in order, whatever happens on the way."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from atom_lite.errors import EngineError, RequestError
from atom_lite.messages import (
    PromptLogprobs,
    SequenceEvent,
    StepResult,
    SubmitSequence,
    TokensGenerated,
)
from atom_lite.scheduler.prompt_scores import MOST_ENTRIES_PER_STEP
from atom_lite.scheduler.scheduler import Scheduler
from atom_lite.scheduler.stopping import max_output_tokens
from tests.fakes.scheduler_inputs import CappedChunks, finished, make_limits, make_submission, shape
from tests.fakes.virtual_pipeline import VirtualPipeline, expected_logprobs

PROMPT = list(range(16))


class Run:
    """A scheduler over a virtual pipeline, one step after the other."""

    def __init__(self, largest_chunk: int = 100, **limits: Any) -> None:
        numbers = make_limits(**limits)
        self.scheduler = Scheduler(numbers, planner=CappedChunks(largest_chunk))
        self.pipeline = VirtualPipeline(
            numbers.pipeline_depth, numbers.num_blocks, numbers.block_size
        )
        self.events: list[SequenceEvent] = []

    def submit(self, *messages: SubmitSequence) -> None:
        for message in messages:
            assert self.scheduler.submit(message, 0.0) == []

    def plan(self) -> list[tuple[int, int]]:
        """Start a step."""
        plan = self.scheduler.schedule(0.0)
        self.scheduler.check_integrity()
        assert plan is not None
        self.pipeline.send(plan)
        return shape(plan)

    def finish(self) -> StepResult:
        """The oldest step's result, which is committed."""
        result = self.pipeline.finish_oldest()
        assert result is not None
        self.events += self.scheduler.commit(result, 0.0)
        self.scheduler.check_integrity()
        return result

    def step(self) -> list[tuple[int, int]]:
        rows = self.plan()
        self.finish()
        return rows

    def run(self) -> None:
        while self.scheduler.has_work():
            self.step()

    def told(self, sequence_id: int) -> list[tuple[int, int]]:
        """(first position, count) of its events."""
        return [
            (event.start, len(event.positions))
            for event in self.events
            if isinstance(event, PromptLogprobs) and event.sequence_id == sequence_id
        ]

    def check(self, message: SubmitSequence) -> None:
        mine = [event for event in self.events if event.sequence_id == message.sequence_id]
        told = [p for e in mine if isinstance(e, PromptLogprobs) for p in e.positions]
        tokens = [t for e in mine if isinstance(e, TokensGenerated) for t in e.token_ids]
        said = [p for e in mine if isinstance(e, TokensGenerated) for p in e.logprobs]
        assert (told, said) == expected_logprobs(message, tokens)


def scored(sequence_id: int, prompt: list[int] = PROMPT, max_tokens: int = 3, **more: Any) -> Any:
    return make_submission(
        sequence_id, prompt, max_tokens, num_prompt_logprobs=2, ignore_eos=True, **more
    )


def test_each_chunk_brings_its_positions_and_all_come_before_the_first_token() -> None:
    run = Run(largest_chunk=6)
    run.submit(scored(1, num_logprobs=1))
    run.run()
    assert run.told(1) == [(1, 6), (7, 6), (13, 3)]
    kinds = [type(event).__name__ for event in run.events]
    assert kinds[:5] == ["PromptLogprobs"] * 3 + ["TokensGenerated"] * 2
    run.check(scored(1, num_logprobs=1))


def test_a_prompt_of_one_token_has_nothing_to_report() -> None:
    run = Run()
    run.submit(scored(1, [5]))
    run.run()
    assert run.told(1) == []


def test_the_cache_is_filled_but_not_read() -> None:
    run = Run()
    run.submit(make_submission(1, PROMPT, 1))
    run.run()
    run.submit(scored(2))
    assert run.step() == [(2, 16)]
    run.submit(make_submission(3, PROMPT, 1))
    assert run.step() == [(2, 1), (3, 4)], "what 1 or 2 has computed"
    run.run()
    assert finished(run.events)[2].num_cached_tokens == 0
    assert run.scheduler.stats().prefix_cache_queries == 32, "of 1 and 3"
    run.check(scored(2))


def test_it_waits_for_no_twin_and_its_twins_wait_for_it() -> None:
    run = Run(largest_chunk=8)
    run.submit(make_submission(1, PROMPT, 9), scored(2), make_submission(3, PROMPT, 9))
    assert run.step() == [(1, 8), (2, 8)]
    assert run.step() == [(1, 8), (2, 8), (3, 4)]
    run.run()
    run.check(scored(2))


def test_a_preempted_prompt_goes_on_where_its_reports_ended() -> None:
    run = Run(largest_chunk=1, num_blocks=8)
    run.submit(make_submission(1, 1, 28, ignore_eos=True), scored(2, list(range(20)), 2))
    while (sequence := run.scheduler._roster.get(2)) is not None and not sequence.epoch:
        run.step()
    reported = 1 + sum(count for _, count in run.told(2))
    assert sequence is not None and 1 < reported < 20, "it was cut off in the middle"
    run.run()
    assert finished(run.events)[2].num_cached_tokens == 0
    run.check(scored(2, list(range(20)), 2))


def test_a_sequence_preempted_while_it_decodes_reports_nothing_twice() -> None:
    run = Run(num_blocks=5)
    run.submit(make_submission(1, 7, 12, ignore_eos=True), scored(2, list(range(7)), 8))
    run.run()
    assert finished(run.events)[2].num_preemptions == 1
    assert run.told(2) == [(1, 6)]
    run.check(scored(2, list(range(7)), 8))


def test_what_comes_home_for_an_old_epoch_is_dropped_and_computed_again() -> None:
    run = Run(largest_chunk=6, pipeline_depth=2)
    run.submit(scored(1))
    run.step()
    assert run.plan() == [(1, 6)]
    sequence = run.scheduler._roster.get(1)
    assert sequence is not None
    run.scheduler._roster.preempt(sequence)
    run.finish()
    assert run.told(1) == [(1, 6)]
    run.run()
    assert run.told(1) == [(1, 6), (7, 6), (13, 3)]
    run.check(scored(1))


def test_nothing_is_reported_of_a_sequence_that_was_aborted() -> None:
    run = Run(largest_chunk=6, pipeline_depth=2)
    run.submit(scored(1))
    assert run.plan() == [(1, 6)]
    assert len(run.scheduler.abort(1, "abort", 0.0)) == 1
    run.finish()
    assert run.events == []


def test_a_result_without_the_scores_it_owes_is_an_error() -> None:
    for lost in (0, 1, 2):
        run = Run(largest_chunk=6)
        run.submit(scored(1))
        with pytest.raises(EngineError, match=f"positions {1 + 6 * lost} to .* are missing"):
            for step in range(3):
                run.plan()
                result = run.pipeline.finish_oldest()
                assert result is not None
                if step == lost:
                    result = msgspec.structs.replace(result, prompt_scores=[])
                run.scheduler.commit(result, 0.0)


def test_chunks_stay_so_small_that_a_result_stays_a_message() -> None:
    count = MOST_ENTRIES_PER_STEP // 5 - 1
    scheduler = Scheduler(make_limits())
    for sequence_id in (1, 2):
        message = make_submission(sequence_id, 16, num_prompt_logprobs=count)
        assert scheduler.submit(message, 0.0) == []
    assert scheduler.submit(make_submission(3, 6), 0.0) == []
    assert shape(scheduler.schedule(0.0)) == [(1, 5)], "2 waits for a step with room for reports"
    scheduler.check_integrity()


def test_a_whole_prompt_whose_report_is_no_message_is_refused() -> None:
    limits = make_limits(enable_chunked_prefill=False)
    count = MOST_ENTRIES_PER_STEP // 16 - 1
    assert max_output_tokens(make_submission(1, 16, num_prompt_logprobs=count), limits) == 4
    with pytest.raises(RequestError, match=r"prompt of 17 tokens .* 16 tokens only") as caught:
        max_output_tokens(make_submission(1, 17, num_prompt_logprobs=count), limits)
    assert caught.value.param == "prompt_logprobs"
