"""Loads that calibrations have died of elsewhere, against the real scheduler and policies.

Two stages with a virtual clock, whose times follow a known model with a little noise; every KV read
and every token is checked.
"""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING

import pytest

from atom_lite.chunking.latency_model import Chunk
from atom_lite.chunking.profile import Fingerprint
from atom_lite.config import ChunkingConfig, Config
from atom_lite.engine.chunking_desk import ChunkingDesk
from atom_lite.engine.chunking_policy import make_controller
from atom_lite.messages import StepResult, StepTimes
from atom_lite.scheduler.scheduler import Scheduler, SchedulerLimits
from tests.fakes.clockwork import Clockwork
from tests.fakes.scheduler_inputs import make_submission
from tests.fakes.virtual_pipeline import expected_output
from tests.unit.chunking.samples import SERVED

if TYPE_CHECKING:
    from atom_lite.messages import StepPlan, SubmitSequence

NUM_STAGES = 2
LIMITS = SchedulerLimits(
    max_num_seqs=16,
    decode_step_tokens=1024,
    prefill_step_tokens=1024,
    max_model_len=4096,
    block_size=16,
    num_blocks=2048,
    eos_token_ids=frozenset(),
    pipeline_depth=NUM_STAGES,
)
BOTH = pytest.mark.parametrize("policy", ["atom", "makespan"])


class Stages:
    """How long a plan takes on a stage; also runs the startup sweep, like an executor."""

    def __init__(self, seed: int = 1) -> None:
        self._random = random.Random(seed)
        self._results: list[StepResult] = []

    def seconds(self, plan: StepPlan, stage: int) -> float:
        chunks = [
            Chunk(0 if plan.skip_attention else row.start, row.num_tokens)
            for row in plan.rows
            if not row.token_ids
        ]
        decodes = [row.start for row in plan.rows if row.token_ids]
        model = SERVED.with_decodes(1e-4, 1e-8)
        exact = model.predict(chunks, decode_rows=len(decodes), decode_context_tokens=sum(decodes))
        if plan.skip_attention:
            exact -= model.attention_seconds_per_area * sum(chunk.area for chunk in chunks)
        return exact * self._random.uniform(0.98, 1.02)

    def start(self, plan: StepPlan) -> None:
        seconds = [self.seconds(plan, stage) for stage in range(NUM_STAGES)]
        times = [StepTimes(step_id=plan.step_id, stage_seconds=seconds)] if plan.rows else []
        self._results.append(StepResult(step_id=plan.step_id, tokens=[], times=times))

    def last_handed_on(self) -> int:
        return -1

    def take_results(self) -> list[StepResult]:
        results, self._results = self._results, []
        return results

    def close(self) -> None:
        pass


class Served:
    """A server under one policy, calibrated at start as the real one is."""

    def __init__(self, policy: str) -> None:
        chunking = ChunkingConfig(
            enable_dynamic_chunking=True,
            dynamic_chunking_policy=policy,
            dynamic_chunking_min_chunk_size=64,
        )
        self.controller = make_controller(Config(chunking=chunking), LIMITS)
        fingerprint = Fingerprint(
            model="m", dtype="float32", device="cpu", num_threads=1, layers_per_stage=(1, 1)
        )
        desk = ChunkingDesk(
            self.controller,
            fingerprint,
            policy=policy,
            profile_path=None,
            block_size=LIMITS.block_size,
            vocab_size=50,
        )
        stages = Stages()
        first_step_id = desk.load(stages)
        self.scheduler = Scheduler(
            LIMITS,
            planner=self.controller.planner,
            report=self.controller.report,
            needs_acknowledgement=lambda: self.controller.needs_acknowledgement,
            first_step_id=first_step_id,
        )
        self.clockwork = Clockwork(self.scheduler, LIMITS, stages.seconds, desk=desk)
        self.submissions: dict[int, SubmitSequence] = {}

    def submit(self, *prompt_tokens: int, max_tokens: int = 2) -> list[int]:
        """A burst of prompts of these lengths."""
        first = len(self.submissions)
        messages = [
            make_submission(first + index, length, max_tokens)
            for index, length in enumerate(prompt_tokens)
        ]
        self.submissions |= {message.sequence_id: message for message in messages}
        self.clockwork.submit(*messages)
        return [message.sequence_id for message in messages]

    def serve(self, *prompt_tokens: int) -> None:
        """One prompt after the other."""
        for length in prompt_tokens:
            self.submit(length)
            self.clockwork.run()

    @property
    def state(self) -> str:
        return self.controller.status().state

    def sizes_of_a_prompt(self, num_tokens: int) -> list[str]:
        """For what reason each of its chunks had its size."""
        before = dict(self.controller.report.total_by_reason)
        self.serve(num_tokens)
        after = self.controller.report.total_by_reason
        return [reason for reason, count in after.items() if count > before.get(reason, 0)]

    def check(self) -> None:
        """Everybody got their answer, and nothing is held any more."""
        assert self.clockwork.ended.keys() == self.submissions.keys()
        for sequence_id, end in self.clockwork.ended.items():
            message = self.submissions[sequence_id]
            output = self.clockwork.outputs.get(sequence_id, [])
            expected = expected_output(message, message.sampling.max_tokens)
            assert output == (expected[: len(output)] if end.reason == "abort" else expected)
            assert end.reason in ("abort", "length")
        stats = self.scheduler.stats()
        assert (stats.num_running, stats.num_waiting, stats.kv_usage) == (0, 0, 0)


def burst(seed: int, count: int) -> list[int]:
    source = random.Random(seed)
    return [source.choice([20, 300, 1100, 2000]) for _ in range(count)]


def test_bursts_before_calibration_cost_makespan_nothing_but_time() -> None:
    served = Served("makespan")
    for seed in range(3):
        served.submit(*burst(seed, 16))
        served.clockwork.run()
    served.check()
    assert served.state == "installed", served.controller.status().reason
    assert served.sizes_of_a_prompt(3000) == ["model"]


def test_bursts_before_calibration_end_atoms_as_its_rule_says_and_not_the_server(
    caplog: pytest.LogCaptureFixture,
) -> None:
    served = Served("atom")
    while served.state == "calibrating":
        served.submit(*burst(len(served.submissions), 16))
        served.clockwork.run()
        assert len(served.submissions) < 2000
    assert served.state == "gave_up"
    assert "giving up on dynamic chunking calibration" in caplog.text
    assert "chunking stays fixed" in caplog.text
    assert not served.controller.needs_acknowledgement, "middle chunks retire locally again"
    assert served.sizes_of_a_prompt(3000) == ["fixed"]
    served.check()


@BOTH
def test_a_burst_is_no_reason_not_to_calibrate_from_the_lone_prompts_after_it(policy: str) -> None:
    served = Served(policy)
    served.submit(*burst(0, 8))
    served.clockwork.run()
    served.serve(*[3000] * 12)
    served.check()
    assert served.state == "installed", served.controller.status().reason
    assert served.sizes_of_a_prompt(3000) == ["model"]


def test_prompts_of_one_chunk_size_make_atom_give_up_with_the_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    served = Served("atom")
    served.serve(*[64] * 80)
    served.check()
    assert served.state == "gave_up"
    assert "sampled requests, 1 chunk sizes" in caplog.text
    assert served.sizes_of_a_prompt(3000) == ["fixed"]


def test_prompts_of_one_chunk_size_leave_makespan_ready_for_others() -> None:
    served = Served("makespan")
    served.serve(*[64] * 80)
    served.check()
    assert served.state in ("collecting", "installed")
    assert served.controller.status().reason
    served.serve(*[3000] * 12)
    assert served.state == "installed", served.controller.status().reason
    assert served.sizes_of_a_prompt(3000) == ["model"]


@BOTH
def test_an_abort_at_every_point_of_a_prompt_disturbs_nobody(policy: str) -> None:
    for point in itertools.count():
        served = Served(policy)
        (aborted,) = served.submit(2000)
        served.submit(700, 40)
        served.clockwork.run(point)
        if aborted in served.clockwork.ended:
            break
        served.clockwork.abort(aborted)
        served.submit(900)
        served.clockwork.run()
        served.check()
        assert served.clockwork.ended[aborted].reason == "abort"
    assert point > 8


@BOTH
def test_aborts_do_not_keep_a_calibration_from_its_model(policy: str) -> None:
    served = Served(policy)
    for index in range(24):
        (sequence_id,) = served.submit(3000)
        served.clockwork.run(4 + index % 5)
        if index % 2:
            served.clockwork.abort(sequence_id)
        served.clockwork.run()
    served.check()
    assert served.state == "installed", served.controller.status().reason
