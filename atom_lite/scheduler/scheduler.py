"""The scheduler: submissions and results in, step plans and events out.

Why: this is the whole control plane of the engine behind five calls, so that the engine, the
simulation and the tests drive the very same object. Runs in the head process. It must not import
torch, do I/O or read a clock: whoever calls passes `now`.

    submit, abort --> [waiting] --schedule(now)--> StepPlan --> stage 0 --> ... --> last stage
                                        hand_on(step id) <---------+                    |
    events <------------------commit(result, now)-- StepResult <------------------------+

Every submitted sequence ends with exactly one `SequenceFinished`, after its last tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from atom_lite.chunking.planner import Supply
from atom_lite.chunking.planners.fixed import FixedPlanner
from atom_lite.chunking.report import ChunkReport
from atom_lite.errors import EngineError, RequestError
from atom_lite.kv.allocator import KVAllocator
from atom_lite.messages import (
    EngineStats,
    FinishReason,
    SampledToken,
    SequenceEvent,
    SequenceFinished,
    StepPlan,
    StepResult,
    SubmitSequence,
    TokensGenerated,
)
from atom_lite.scheduler.capacity import make_capacity
from atom_lite.scheduler.deadlines import deadline_of
from atom_lite.scheduler.endings import ending, refusal
from atom_lite.scheduler.forecast import Forecast, step_budget
from atom_lite.scheduler.in_flight import InFlight, errors_that_count, tokens_that_count
from atom_lite.scheduler.limits import SchedulerLimits
from atom_lite.scheduler.policies.select import make_policy
from atom_lite.scheduler.policies.slo import Slo
from atom_lite.scheduler.prompt_scores import prompt_scores_that_count
from atom_lite.scheduler.roster import Roster
from atom_lite.scheduler.sequence import Sequence
from atom_lite.scheduler.sharing import Sharing
from atom_lite.scheduler.step_admission import Machinery
from atom_lite.scheduler.step_builder import StepBuilder
from atom_lite.scheduler.stopping import Stop, find_stop, max_output_tokens

if TYPE_CHECKING:
    from collections.abc import Callable

    from atom_lite.chunking.controller import ModelReport
    from atom_lite.chunking.planner import ChunkPlanner
    from atom_lite.chunking.refusal import Notice
    from atom_lite.scheduler.policies.policy import BatchingPolicy

__all__ = ["Scheduler", "SchedulerLimits"]

_COUNTERS = (  # fields of EngineStats
    "num_steps",
    "prefix_cache_queries",
    "prefix_cache_hits",
    "prompt_tokens_computed",
    "output_tokens",
    "deadline_overruns",
    "static_budget_steps",
)


class Scheduler:
    """Iteration-level scheduler over a paged KV cache.

    Args:
        limits: resolved numbers.
        policy: order and admission. Default: the one that the limits name.
        planner: chunk size. Default: all that the budget leaves.
        report: counts the chunks that are placed.
        needs_acknowledgement: asked for each step: whether only the last stage's result may retire
            a step of middle chunks (`in_flight.py`). Default: never.
        model_report: asked for each step by what sizes it for objectives: the latency models of
            now. Default: there are none.
        first_step_id: step ids count up from here; those below have been used on the same stages.

    Raises:
        ConfigError: limits under which some sequence could never run.
    """

    def __init__(
        self,
        limits: SchedulerLimits,
        *,
        policy: BatchingPolicy | None = None,
        planner: ChunkPlanner | None = None,
        report: ChunkReport | None = None,
        needs_acknowledgement: Callable[[], bool] = lambda: False,
        model_report: Callable[[], ModelReport | None] = lambda: None,
        first_step_id: int = 0,
    ) -> None:
        limits.check()
        self._limits = limits
        self._forecast = Forecast(model_report) if limits.watches_steps else None
        self._policy = policy or make_policy(limits, self._forecast)
        self._allocator = KVAllocator(limits.num_blocks, limits.block_size)
        self._sharing = Sharing(self._allocator, enable_prefix_caching=limits.enable_prefix_caching)
        self._roster = Roster(self._allocator, self._sharing, make_capacity(limits))
        self._in_flight = InFlight(limits.pipeline_depth)
        self._needs_acknowledgement = needs_acknowledgement
        self._planner = planner or FixedPlanner()
        self._machinery = Machinery(
            limits,
            self._roster,
            self._allocator,
            self._sharing,
            self._planner,
            report or ChunkReport(),
        )
        self._num_submitted = 0
        self._next_step_id = first_step_id
        self._asked_in_vain: int | None = None  # supply of a step that had nothing to run
        self._counters = dict.fromkeys(_COUNTERS, 0)

    # ------------------------------------------------------------ sequences in and out

    def submit(self, message: SubmitSequence, now: float) -> list[SequenceEvent]:
        """Queue a sequence; one that can never be served ends at once with error status 400.

        Raises:
            EngineError: the id is in use. Ids come from our own frontend, which never reuses one.
        """
        if self._roster.get(message.sequence_id) is not None:
            raise EngineError(f"sequence id {message.sequence_id} is submitted twice")
        try:
            most = max_output_tokens(message, self._limits)
        except RequestError as error:
            return [refusal(message, error, now)]
        self._num_submitted += 1
        by_priority = self._limits.scheduling_policy == "priority"
        sequence = Sequence(
            submission=message,
            order=(message.priority if by_priority else 0, self._num_submitted),
            max_output_tokens=most,
            root_digest=self._sharing.root_digest(message),
            tokens=list(message.prompt_token_ids),
            deadline=deadline_of(message, self._limits.objectives),
        )
        if isinstance(self._policy, Slo):
            cached = len(self._sharing.find_cached_blocks(sequence)) * self._limits.block_size
            sequence.prefill_due = self._policy.prefill_due(sequence, len(sequence.tokens) - cached)
        self._roster.add(sequence)
        return []

    def abort(
        self, sequence_id: int, reason: Literal["stop", "abort"], now: float
    ) -> list[SequenceEvent]:
        """End a sequence now; nothing for an unknown id, which may just have finished."""
        sequence = self._roster.get(sequence_id)
        return [] if sequence is None else [self._finish(sequence, reason, now)]

    def abort_all(self, now: float, error: str | None = None) -> list[SequenceEvent]:
        """End every sequence: at shutdown, or with `error` when the engine has failed."""
        reason: FinishReason = "abort" if error is None else "error"
        return [self._finish(sequence, reason, now, error=error) for sequence in list(self._roster)]

    # ------------------------------------------------------------ steps

    def schedule(self, now: float) -> StepPlan | None:
        """Plan the next step; None when nothing can run now.

        May be called again before `commit` until the pipeline is full, see `in_flight`.
        """
        num_streams, in_pipe = _count_streams(self._roster.decoding)
        has_room = self._in_flight.has_room(may_run_ahead=num_streams == 0)
        if not has_room or not len(self._roster):
            return None
        share = self._in_flight.decode_share(len(self._roster.decoding))
        budget = step_budget(self._limits, self._forecast, num_streams, share)
        step = StepBuilder(self._machinery, self._next_step_id, now, share, budget)
        # A queue whose head cannot start brings no work to the stages, however long it is.
        num_waiting = len(self._roster.waiting) if step.next_admission() is not None else 0
        num_prefills = len(self._roster.prefilling) + num_waiting
        # Asked again before anything could run, it is still the same step of the planner's.
        if num_prefills != self._asked_in_vain:
            self._planner.begin_step(Supply(num_prefills, num_streams, in_pipe))
        self._policy.fill(step)
        if not step.rows:
            self._asked_in_vain = num_prefills
            return None
        self._asked_in_vain = None
        self._next_step_id += 1
        self._counters["prefix_cache_queries"] += step.prefix_cache_queries
        self._counters["prefix_cache_hits"] += step.prefix_cache_hits
        self._counters["deadline_overruns"] += step.is_overrun
        self._counters["static_budget_steps"] += step.is_static
        acknowledge = self._needs_acknowledgement() or any(
            row.is_awaited for row in step.flight.rows
        )
        self._in_flight.launch(step.flight._replace(acknowledge=acknowledge))
        if self._forecast is not None:
            self._forecast.launched(step.flight.step_id, step.contents())
        return StepPlan(
            step_id=step.flight.step_id,
            starts=step.starts,
            rows=step.rows,
            drops=self._roster.take_drops(),
            acknowledge=acknowledge,
        )

    def hand_on(self, step_id: int) -> None:
        """Stage 0 has finished this step and with it all before; may come late or twice."""
        self._in_flight.hand_on(step_id)

    def commit(self, result: StepResult, now: float) -> list[SequenceEvent]:
        """Take the result of the oldest plan in flight.

        Raises:
            EngineError: not that plan's result, or one that lacks something; the engine is done.
        """
        flight = self._in_flight.land(result)
        if self._forecast is not None:
            self._forecast.landed(result)
        self._counters["num_steps"] += 1
        self._counters["prompt_tokens_computed"] += flight.num_prefill_tokens
        events: list[SequenceEvent] = [*prompt_scores_that_count(flight, result)]
        for sequence, error in errors_that_count(flight, result):
            end = self._finish(sequence, "error", now, error=error.message)
            events.append(msgspec.structs.replace(end, error_status=error.status))
        for sequence, token in tokens_that_count(flight, result):
            if token is None:
                events.append(self._finish(sequence, "length", now))
            else:
                self._accept(sequence, token, now, events)
        return events

    def reset_prefix_cache(self) -> None:
        """Forget every cached block that no running sequence holds."""
        self._allocator.reset_prefix_cache()

    # ------------------------------------------------------------ views

    def has_work(self) -> bool:
        """Whether a sequence lives or a result is still to come."""
        return len(self._roster) > 0 or len(self._in_flight) > 0

    def cached_tokens(self, sequence_id: int) -> int:
        """How much of a live sequence's prompt a prefix hit would save now."""
        sequence = self._roster.get(sequence_id)
        assert sequence is not None
        return len(self._sharing.find_cached_blocks(sequence)) * self._limits.block_size

    def take_notices(self) -> list[Notice]:
        """Lines for the log since the last call: how steps are sized for objectives."""
        return [] if self._forecast is None else self._forecast.take_notices()

    def stats(self) -> EngineStats:
        """Gauges of now and counters since start."""
        return EngineStats(
            num_running=self._roster.num_running,
            num_waiting=len(self._roster.waiting),
            kv_usage=self._allocator.num_held / self._limits.num_blocks,
            num_preemptions=self._roster.num_preemptions,
            # what the head knows
            stage_busy_seconds=[],
            stage_bubble_seconds=[],
            chunking=None,
            **self._counters,
        )

    def check_integrity(self) -> None:
        """Raise AssertionError when the bookkeeping contradicts itself (tests call this)."""
        self._roster.check_integrity()

    # ------------------------------------------------------------ inside

    def _accept(
        self, sequence: Sequence, token: SampledToken, now: float, events: list[SequenceEvent]
    ) -> None:
        """Append a drawn token, and finish the sequence if it was the last."""
        if sequence.num_scheduled_tokens % self._limits.block_size == 0:
            self._register_written_block(sequence)
        sequence.awaits_result = False
        sequence.tokens.append(token.token_id)
        sequence.deadline.token(now)
        self._counters["output_tokens"] += 1
        cached = 0
        if sequence.first_token_time is None:
            sequence.first_token_time = now
            cached = sequence.num_cached_tokens
        events.append(
            TokensGenerated(
                sequence_id=sequence.submission.sequence_id,
                token_ids=[token.token_id],
                num_cached_tokens=cached,
                logprobs=[] if token.logprobs is None else [token.logprobs],
            )
        )
        stop = find_stop(sequence, self._limits.eos_token_ids)
        if stop is not None:
            events.append(self._finish(sequence, stop.reason, now, stop=stop))

    def _register_written_block(self, sequence: Sequence) -> None:
        """Name the block that the landed decode has filled, if it has."""
        num_full = sequence.num_scheduled_tokens // self._limits.block_size
        if self._limits.enable_prefix_caching and num_full > sequence.num_registered_blocks:
            self._sharing.name_blocks(sequence)
            self._roster.register_blocks(sequence, num_full)

    def _finish(
        self,
        sequence: Sequence,
        reason: FinishReason,
        now: float,
        *,
        stop: Stop | None = None,
        error: str | None = None,
    ) -> SequenceFinished:
        self._roster.finish(sequence)
        self._planner.forget(sequence.sequence_id)
        return ending(sequence, reason, now, stop=stop, error=error)


def _count_streams(decoding: list[Sequence]) -> tuple[int, int]:
    """Those that take another step once their result is back, and those without a first token.

    One pass without calls: at every step it goes over all that decode.
    """
    num_streams = num_without_token = 0
    for sequence in decoding:
        num_tokens = len(sequence.tokens) - len(sequence.submission.prompt_token_ids)
        num_streams += num_tokens + sequence.awaits_result < sequence.max_output_tokens
        num_without_token += num_tokens == 0
    return num_streams, num_without_token
