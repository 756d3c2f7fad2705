"""Short ways to make limits and submissions for the control plane's tests."""

from __future__ import annotations

from typing import Any

from atom_lite.chunking.planner import ChunkDecision, ChunkRequest, Supply
from atom_lite.messages import (
    SampledToken,
    SamplingParams,
    SequenceEvent,
    SequenceFinished,
    StepPlan,
    StepResult,
    SubmitSequence,
    TokensGenerated,
)
from atom_lite.scheduler.scheduler import Scheduler, SchedulerLimits

EOS = 49


class CappedChunks:
    """A chunk planner that leaves room in the step, as one for pipelines does."""

    def __init__(self, largest_chunk: int) -> None:
        self._largest_chunk = largest_chunk

    def begin_step(self, supply: Supply) -> None:
        pass

    def next_chunk(self, request: ChunkRequest) -> ChunkDecision:
        return ChunkDecision(min(request.most_tokens, self._largest_chunk), "schedule")

    def forget(self, sequence_id: int) -> None:
        pass


def make_limits(**changes: Any) -> SchedulerLimits:
    values: dict[str, Any] = {
        "max_num_seqs": 8,
        "decode_step_tokens": 16,
        "prefill_step_tokens": 32,
        "max_model_len": 256,
        "block_size": 4,
        "num_blocks": 64,
        "eos_token_ids": frozenset({EOS}),
    }
    return SchedulerLimits(**(values | changes))


def make_submission(
    sequence_id: int,
    prompt: list[int] | int,
    max_tokens: int = 4,
    *,
    priority: int = 0,
    cache_salt: str | None = None,
    group: int | None = None,
    **sampling: Any,
) -> SubmitSequence:
    """A prompt given as a number is that many tokens that no other sequence shares."""
    if isinstance(prompt, int):
        prompt = [1000 * (sequence_id + 1) + i % 7 for i in range(prompt)]
    return SubmitSequence(
        sequence_id=sequence_id,
        prompt_token_ids=prompt,
        sampling=SamplingParams(max_tokens=max_tokens, **sampling),
        arrival_time=float(sequence_id),
        priority=priority,
        cache_salt=cache_salt,
        group=group,
    )


def answer(plan: StepPlan, token_id: int = 7) -> StepResult:
    """The result of a plan in which every sampled row draws `token_id`."""
    return StepResult(
        step_id=plan.step_id,
        tokens=[SampledToken(r.sequence_id, r.epoch, token_id) for r in plan.rows if r.sample],
    )


def shape(plan: StepPlan | None) -> list[tuple[int, int]]:
    """(sequence id, tokens) of each row."""
    assert plan is not None
    return [(row.sequence_id, row.num_tokens) for row in plan.rows]


def run_step(
    scheduler: Scheduler, now: float = 0.0, token_id: int = 7
) -> tuple[StepPlan, list[SequenceEvent]]:
    """One whole step, checked."""
    plan = scheduler.schedule(now)
    assert plan is not None
    scheduler.check_integrity()
    events = scheduler.commit(answer(plan, token_id), now)
    scheduler.check_integrity()
    return plan, events


def run_until_idle(scheduler: Scheduler, most_steps: int = 1000) -> list[SequenceEvent]:
    events: list[SequenceEvent] = []
    for _ in range(most_steps):
        if not scheduler.has_work():
            return events
        events += run_step(scheduler)[1]
    raise AssertionError(f"still busy after {most_steps} steps")


def finished(events: list[SequenceEvent]) -> dict[int, SequenceFinished]:
    return {e.sequence_id: e for e in events if isinstance(e, SequenceFinished)}


def output_tokens(events: list[SequenceEvent]) -> dict[int, list[int]]:
    outputs: dict[int, list[int]] = {}
    for event in events:
        if isinstance(event, TokensGenerated):
            outputs.setdefault(event.sequence_id, []).extend(event.token_ids)
    return outputs
