"""The scheduler against random clients and a virtual pipeline that checks every KV read."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, get_args

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from atom_lite.chunking.controller import ModelReport
from atom_lite.chunking.latency_model import LatencyModel
from atom_lite.config_scheduling import BatchingPolicyName, CapacityPolicyName, Objectives
from atom_lite.messages import (
    Logprobs,
    PromptLogprobs,
    SequenceEvent,
    SequenceFinished,
    StepPlan,
    StepRow,
    StepTimes,
    SubmitSequence,
    TokensGenerated,
)
from atom_lite.scheduler.scheduler import Scheduler, SchedulerLimits
from tests.fakes.scheduler_inputs import EOS, CappedChunks, make_limits, make_submission
from tests.fakes.virtual_pipeline import VirtualPipeline, expected_logprobs, expected_output

limits_strategy = st.builds(
    make_limits,
    max_num_seqs=st.integers(1, 6),
    decode_step_tokens=st.integers(6, 20),
    prefill_step_tokens=st.integers(20, 40),
    max_model_len=st.integers(8, 80),
    block_size=st.sampled_from([1, 2, 4, 8]),
    num_blocks=st.integers(2, 24),
    enable_chunked_prefill=st.booleans(),
    enable_prefix_caching=st.booleans(),
    scheduling_policy=st.sampled_from(["fcfs", "priority"]),
    pipeline_depth=st.integers(1, 4),
    capacity_policy=st.sampled_from(get_args(CapacityPolicyName)),
    objectives=st.builds(
        Objectives,
        ttft_seconds=st.sampled_from([None, 0.05, 2.0]),
        tbt_seconds=st.sampled_from([None, 0.004, 0.02, 1.0]),
    ),
)
# What policy slo may believe: nothing, a model that is right or one that is far off.
reports = st.sampled_from(
    [
        None,
        ModelReport((LatencyModel.from_milliseconds(a=0.0, b=1.0, c=2.0),), 0.05),
        ModelReport((LatencyModel.from_milliseconds(a=0.1, b=0.01, c=50.0, gamma=0.5),), 0.0),
    ]
)
# Rules of other servers that no token budget bounds.
UNBOUNDED = ("orca", "request-level")


POLICIES = get_args(BatchingPolicyName)


def decodes_of(plan: StepPlan) -> list[StepRow]:
    return [row for row in plan.rows if row.token_ids]


class SchedulerMachine(RuleBasedStateMachine):
    """Clients submit and abort at will while stages run in any interleaving."""

    fixed_limits: ClassVar[dict[str, Any]] = {}

    @initialize(
        limits=limits_strategy, largest_chunk=st.sampled_from([1, 3, 8, 40, 40]), report=reports
    )
    def start(
        self, limits: SchedulerLimits, largest_chunk: int, report: ModelReport | None
    ) -> None:
        self.now = 0.0
        self.limits = limits = dataclasses.replace(limits, **self.fixed_limits)
        self.needs_acknowledgement = False
        self.scheduler = Scheduler(
            limits,
            planner=CappedChunks(largest_chunk),
            needs_acknowledgement=lambda: self.needs_acknowledgement,
            model_report=lambda: report,
        )
        self.pipeline = VirtualPipeline(limits.pipeline_depth, limits.num_blocks, limits.block_size)
        self.submissions: dict[int, SubmitSequence] = {}
        self.outputs: dict[int, list[int]] = {}
        self.logprobs: dict[int, list[Logprobs]] = {}
        self.prompt_logprobs: dict[int, list[Logprobs]] = {}
        self.ended: dict[int, SequenceFinished] = {}
        self.aborted: set[int] = set()
        self.awaiting: set[int] = set()  # a token of theirs is being drawn
        self.ready: set[int] = set()  # their last token is known
        self.in_flight: list[StepPlan] = []
        self.handed_on = -1  # as the scheduler was told
        self.held_decodes_back = False

    # ------------------------------------------------------------ what clients do

    @rule(
        family=st.integers(0, 2),
        shared=st.one_of(st.integers(0, 40), st.sampled_from([8, 16, 24])),
        own=st.sampled_from([0, 0, 1, 2, 5, 20]),
        max_tokens=st.one_of(st.integers(1, 30), st.sampled_from([0, 1])),
        priority=st.integers(-1, 1),
        salt=st.sampled_from([None, None, "a"]),
        ignore_eos=st.booleans(),
        min_tokens=st.integers(0, 3),
        stop_token_ids=st.sampled_from([(), (5,), (5, EOS)]),
        num_logprobs=st.sampled_from([None, None, 1]),
        num_prompt_logprobs=st.sampled_from([None, None, None, 0, 2]),
        num_children=st.sampled_from([1, 1, 1, 2, 4]),
        ttft=st.sampled_from([None, None, 0.01, 0.5]),
        tbt=st.sampled_from([None, None, 0.003, 0.03]),
    )
    def submit(
        self,
        family: int,
        shared: int,
        own: int,
        max_tokens: int,
        salt: str | None,
        num_children: int,
        ttft: float | None,
        tbt: float | None,
        **sampling: Any,
    ) -> None:
        first_id = len(self.submissions)
        prompt = [family] * shared + [100 + first_id] * own
        for sequence_id in range(first_id, first_id + num_children):
            message = make_submission(
                sequence_id,
                prompt,
                max_tokens,
                cache_salt=salt,
                group=first_id if num_children > 1 else None,
                **sampling,
            )
            message = msgspec.structs.replace(
                message, arrival_time=self.now, ttft_slo_seconds=ttft, tbt_slo_seconds=tbt
            )
            self.submissions[sequence_id] = message
            self.take(self.scheduler.submit(message, self.now))

    @rule(pick=st.integers(0, 50), reason=st.sampled_from(["stop", "abort"]))
    def abort(self, pick: int, reason: Any) -> None:
        known = pick < len(self.submissions) and pick not in self.ended
        if known:
            self.aborted.add(pick)
        events = self.scheduler.abort(pick, reason, self.now)
        assert len(events) == (1 if known else 0)
        self.take(events)

    @rule()
    def reset_prefix_cache(self) -> None:
        self.scheduler.reset_prefix_cache()

    # ------------------------------------------------------------ what the engine does

    @rule()
    def schedule(self) -> None:
        plan = self.scheduler.schedule(self.now)
        if plan is None:
            idle = not self.in_flight and len(self.ended) < len(self.submissions)
            assert not idle, "sequences wait, nothing is in flight, nothing is planned"
            return
        self.check_depth()
        self.check_plan(plan)
        self.in_flight.append(plan)
        self.pipeline.send(plan)
        assert len({p.step_id for p in self.in_flight if decodes_of(p)}) <= self.depth

    @rule()
    def hand_on(self) -> None:
        self.handed_on = self.pipeline.last_handed_on
        self.scheduler.hand_on(self.handed_on)

    @rule(needs_acknowledgement=st.booleans())
    def switch_acknowledgement(self, needs_acknowledgement: bool) -> None:
        self.needs_acknowledgement = needs_acknowledgement

    @rule(stage=st.integers(0, 3))
    def tick(self, stage: int) -> None:
        self.pipeline.tick(min(stage, self.limits.pipeline_depth - 1))

    @rule(seconds=st.sampled_from([0.001, 0.02, 0.3]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.in_flight)
    @rule(at_once=st.booleans(), seconds=st.sampled_from([None, 0.002, 0.01, 0.08]))
    def commit(self, at_once: bool, seconds: float | None = None) -> None:
        result = self.pipeline.finish_oldest() if at_once else self.pipeline.take_result()
        if result is not None:
            assert self.in_flight.pop(0).step_id == result.step_id
            if seconds is not None:
                times = [StepTimes(step_id=result.step_id, stage_seconds=[seconds] * self.depth)]
                result = msgspec.structs.replace(result, times=times)
            self.now += seconds or 0.001
            self.take(self.scheduler.commit(result, self.now))

    # ------------------------------------------------------------ what must hold

    @property
    def depth(self) -> int:
        return self.limits.pipeline_depth

    def check_depth(self) -> None:
        """Before a plan goes out: it has a slot, and none has run ahead of a stream."""
        away = len(self.in_flight)
        slots = sum(plan.acknowledge or plan.step_id > self.handed_on for plan in self.in_flight)
        assert slots < self.depth and away <= self.depth
        drawing_on = {i for i in self.awaiting if len(self.outputs.get(i, ())) + 1 < self.most(i)}
        if self.ready | drawing_on:
            assert away < self.depth, "ran ahead of a decode"

    def check_plan(self, plan: StepPlan) -> None:
        awaited = {row.sequence_id for row in plan.rows if row.sample or self.ends_prompt(row)}
        assert plan.acknowledge == (bool(awaited) or self.needs_acknowledgement)
        self.check_starts(plan)
        decodes = decodes_of(plan)
        prefills = [row for row in plan.rows if not row.token_ids]
        assert plan.rows == decodes + prefills, "decodes come first"
        assert len({row.sequence_id for row in plan.rows}) == len(plan.rows)
        total = sum(row.num_tokens for row in plan.rows)
        budget = self.limits.decode_step_tokens if decodes else self.limits.prefill_step_tokens
        if self.limits.whole_prompts and len(plan.rows) == 1:
            budget = max(budget, total)
        assert total > 0
        assert total <= budget or self.limits.batching_policy in UNBOUNDED
        self.check_policy(plan, len(decodes), prefills)
        if (
            self.limits.batching_policy in ("stall-free", "slo")
            and self.limits.enable_hybrid_batching
        ):
            self.check_decodes_placed(plan, {row.sequence_id for row in decodes}, bool(prefills))
        self.ready -= {row.sequence_id for row in decodes}
        self.awaiting |= awaited
        for sequence_id, _ in plan.drops:
            self.ready.discard(sequence_id)

    def check_policy(self, plan: StepPlan, num_decodes: int, prefills: list[StepRow]) -> None:
        """What each policy says of its steps."""
        policy = self.limits.batching_policy
        starts = {start.sequence_id: start for start in plan.starts}
        if self.limits.whole_prompts:
            for row in prefills:
                assert row.start + row.num_tokens == len(starts[row.sequence_id].token_ids)
        if policy == "prefill-first" or not self.limits.enable_hybrid_batching:
            assert not (num_decodes and prefills)
        if policy == "request-level" and prefills:
            others = set(self.submissions) - self.ended.keys() - starts.keys()
            assert not others & (self.ready | self.awaiting), "joined a running batch"
        if policy == "unified" and self.depth == 1:
            left_out = self.ready - {row.sequence_id for row in plan.rows}
            left_out -= {sequence_id for sequence_id, _ in plan.drops}
            total = num_decodes + sum(row.num_tokens for row in prefills)
            # The decode budget is in force, as some sequence decodes.
            assert not left_out or total == self.limits.decode_step_tokens

    def ends_prompt(self, row: StepRow) -> bool:
        """Whether a row is the last of a sequence that wants no token."""
        message = self.submissions[row.sequence_id]
        is_end = row.start + row.num_tokens == len(message.prompt_token_ids)
        return is_end and message.sampling.max_tokens == 0

    def check_starts(self, plan: StepPlan) -> None:
        """Prompts whose log probabilities are asked for are computed from their first token on."""
        started = {start.sequence_id for start in plan.starts}
        for row in plan.rows:
            sampling = self.submissions[row.sequence_id].sampling
            if row.sequence_id in started and sampling.num_prompt_logprobs is not None:
                assert row.start == 0
            if sampling.max_tokens == 0:
                assert not row.sample and not row.token_ids

    def check_decodes_placed(self, plan: StepPlan, placed: set[int], any_prefill: bool) -> None:
        assert placed <= self.ready
        if self.depth > 1:
            return
        preempted = {sequence_id for sequence_id, _ in plan.drops}
        left_out = self.ready - placed - preempted
        held_back = bool(left_out)
        if held_back:
            assert not self.limits.enable_chunked_prefill, "a ready decode was left out"
            assert not placed and any_prefill
            assert not self.held_decodes_back, "decodes were held back twice in a row"
        self.held_decodes_back = held_back

    def take(self, events: list[SequenceEvent]) -> None:
        for event in events:
            sequence_id = event.sequence_id
            assert sequence_id not in self.ended, "an event after the terminal one"
            if isinstance(event, PromptLogprobs):
                assert sequence_id not in self.outputs, "an event after the first token"
                told = self.prompt_logprobs.setdefault(sequence_id, [])
                assert event.positions and event.start == 1 + len(told)
                told.extend(event.positions)
                continue
            self.awaiting.discard(sequence_id)
            if isinstance(event, TokensGenerated):
                self.outputs.setdefault(sequence_id, []).extend(event.token_ids)
                self.logprobs.setdefault(sequence_id, []).extend(event.logprobs)
                self.ready.add(sequence_id)
            else:
                self.ended[sequence_id] = event
                self.ready.discard(sequence_id)
                self.check_end(event)

    def most(self, sequence_id: int) -> int:
        """Tokens that a sequence may have drawn."""
        message = self.submissions[sequence_id]
        prompt = len(message.prompt_token_ids)
        return min(
            message.sampling.max_tokens,
            self.limits.max_model_len - prompt,
            self.limits.pool_tokens + 1 - prompt,
        )

    def check_end(self, end: SequenceFinished) -> None:
        message = self.submissions[end.sequence_id]
        output = self.outputs.get(end.sequence_id, [])
        prompt = len(message.prompt_token_ids)
        room = min(self.limits.max_model_len, self.limits.pool_tokens)
        if end.reason == "error":
            least = min(message.sampling.max_tokens, 1)
            assert end.error_status == 400 and (prompt < 1 or prompt + least > room)
            return
        most = self.most(end.sequence_id)
        full = expected_output(message, most, self.limits.eos_token_ids)
        assert end.num_output_tokens == len(output)
        assert output == full[: len(output)], "the schedule changed the tokens"
        told = self.prompt_logprobs.get(end.sequence_id, [])
        expected_prompt, expected = expected_logprobs(message, output)
        assert self.logprobs.get(end.sequence_id, []) == expected
        assert told == expected_prompt[: len(told)], "the schedule changed the log probabilities"
        is_aborted = end.sequence_id in self.aborted
        if output or not is_aborted:
            assert told == expected_prompt
        if not is_aborted:
            assert output == full
            stops = {*message.sampling.stop_token_ids}
            stops |= set() if message.sampling.ignore_eos else {EOS}
            enough = len(output) >= message.sampling.min_tokens
            stopped = bool(output) and output[-1] in stops and enough
            assert end.reason == ("stop" if stopped else "length")

    @invariant()
    def books_agree(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        self.scheduler.check_integrity()
        stats = self.scheduler.stats()
        assert stats.num_running <= self.limits.max_num_seqs
        if self.limits.capacity_policy in ("no-evict", "max-length"):
            assert stats.num_preemptions == 0
        assert stats.num_running + stats.num_waiting == len(self.submissions) - len(self.ended)

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        before = self.scheduler.stats()
        live = len(self.submissions) - len(self.ended)
        tokens = sum(
            len(m.prompt_token_ids) + m.sampling.max_tokens for m in self.submissions.values()
        )
        for _ in range(10 * tokens + 10):
            if not self.scheduler.has_work():
                break
            planned = -1
            while planned < len(self.in_flight):
                planned = len(self.in_flight)
                self.schedule()
                self.pipeline.tick(0)
                self.hand_on()
            if self.in_flight:
                self.commit(at_once=True)
            self.books_agree()
        assert not self.scheduler.has_work(), "starved"
        assert self.ended.keys() == self.submissions.keys()
        after = self.scheduler.stats()
        assert after.kv_usage == 0 and after.num_running == after.num_waiting == 0
        # Draining n sequences preempts each at most once per other that ends.
        assert after.num_preemptions - before.num_preemptions <= live * live


def run(max_examples: int, steps: int, **fixed: Any) -> None:
    run_state_machine_as_test(
        type("Machine", (SchedulerMachine,), {"fixed_limits": fixed}),
        settings=settings(
            max_examples=max_examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_any_load_keeps_every_rule_and_every_token() -> None:
    run(40, 60)


def test_chunked_prefill_on_one_stage_places_every_ready_decode() -> None:
    run(40, 60, pipeline_depth=1, enable_chunked_prefill=True)


def test_a_tiny_pool_preempts_but_never_stalls_or_thrashes() -> None:
    run(40, 60, num_blocks=6, block_size=4, max_num_seqs=6)


def test_objectives_starve_nobody_and_change_no_token() -> None:
    run(40, 60, batching_policy="slo", enable_chunked_prefill=True)


@pytest.mark.parametrize("policy", [n for n in POLICIES if n not in ("stall-free", "slo")])
def test_every_policy_keeps_its_rules_and_every_token(policy: BatchingPolicyName) -> None:
    run(25, 50, batching_policy=policy)


def test_without_hybrid_batching_decodes_and_prefills_take_turns() -> None:
    run(25, 50, enable_hybrid_batching=False)


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("policy", POLICIES)
def test_any_load_keeps_every_rule_and_every_token_many_times(policy: BatchingPolicyName) -> None:
    chunked = {"enable_chunked_prefill": True} if policy == "slo" else {}
    run(1000, 100, batching_policy=policy, **chunked)
