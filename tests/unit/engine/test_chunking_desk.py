"""The head's desk: what it logs, keeps and refuses."""

from __future__ import annotations

import dataclasses
import json
import logging
from typing import TYPE_CHECKING

import pytest

from atom_lite.chunking.calibrator import REFRESH_DECODES
from atom_lite.chunking.planner import ChunkRequest
from atom_lite.chunking.profile import Fingerprint
from atom_lite.config import ChunkingConfig, Config
from atom_lite.engine.chunking_desk import ChunkingDesk
from atom_lite.engine.chunking_policy import make_controller
from atom_lite.errors import EngineError
from atom_lite.messages import (
    SamplingParams,
    StepPlan,
    StepResult,
    StepRow,
    StepTimes,
    SubmitSequence,
)
from tests.fakes.deferred import Deferred
from tests.unit.chunking.samples import SERVED, scaled
from tests.unit.engine.test_in_process import LIMITS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from atom_lite.chunking.latency_model import LatencyModel

FINGERPRINT = Fingerprint(
    model="m", dtype="float32", device="cpu", num_threads=1, layers_per_stage=(15, 15)
)
TWO_STAGES = dataclasses.replace(
    LIMITS,
    pipeline_depth=2,
    decode_step_tokens=512,
    prefill_step_tokens=512,
    max_model_len=8192,
    num_blocks=1024,
)


class Sweeper:
    """An executor whose stages take what a model says; counts what it was given.

    Args:
        stages: their models.
        late_steps: how many steps later a time is known.
    """

    def __init__(self, *stages: LatencyModel, late_steps: int = 0) -> None:
        self._stages = stages
        self._late_steps = late_steps
        self._owed: list[StepTimes] = []
        self._results: list[StepResult] = []
        self.num_forwards = 0

    def start(self, plan: StepPlan) -> None:
        self.num_forwards += len(plan.rows)
        if plan.rows:
            self._owed.append(times(self._stages, plan))
        known = [owed for owed in self._owed if owed.step_id + self._late_steps <= plan.step_id]
        self._owed = self._owed[len(known) :]
        self._results.append(StepResult(step_id=plan.step_id, tokens=[], times=known))

    def take_results(self) -> list[StepResult]:
        results, self._results = self._results, []
        return results

    def last_handed_on(self) -> int:
        return -1

    def close(self) -> None:
        pass


def times(stages: tuple[LatencyModel, ...], plan: StepPlan) -> StepTimes:
    seconds = [
        sum(stage.chunk_seconds(row.start, row.num_tokens) for row in plan.rows) for stage in stages
    ]
    return StepTimes(step_id=plan.step_id, stage_seconds=seconds)


def make_desk(path: Path | None, background: Deferred | None = None) -> ChunkingDesk:
    config = Config(chunking=ChunkingConfig(enable_dynamic_chunking=True))
    return ChunkingDesk(
        make_controller(config, TWO_STAGES, background),
        FINGERPRINT,
        background,
        policy="makespan",
        profile_path=None if path is None else str(path),
        block_size=16,
        vocab_size=1000,
    )


def request_of(sequence_id: int) -> ChunkRequest:
    return ChunkRequest(
        sequence_id=sequence_id, prefix_tokens=0, remaining_tokens=2000, budget_tokens=512
    )


def serve(
    desk: ChunkingDesk,
    *stages: LatencyModel,
    num_steps: int = 40,
    late_steps: int = 0,
    untimed: Callable[[int], bool] = lambda step_id: False,
) -> None:
    stepper = Sweeper(*stages, late_steps=late_steps)
    for step_id in range(num_steps):
        row = StepRow(
            sequence_id=1,
            epoch=0,
            start=512 * (step_id % 8),
            num_tokens=(128, 512)[step_id % 2],
            sample=False,
            new_block_ids=[],
        )
        plan = StepPlan(step_id=step_id, starts=[], rows=[row], drops=[])
        desk.planned(plan)
        stepper.start(plan)
        (result,) = stepper.take_results()
        if untimed(step_id):
            result = StepResult(step_id=step_id, tokens=[])
        desk.finished(result)


def test_a_calibrated_desk_says_so_saves_its_models_and_starts_from_them_next_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    path = tmp_path / "profile.json"
    executor = Sweeper(SERVED, SERVED)
    make_desk(path).load(executor)
    assert executor.num_forwards > 0
    desk = make_desk(path)
    serve(desk, SERVED, SERVED)
    assert "Dynamic chunking latency model installed: a=" in caplog.text
    assert len(json.loads(path.read_text())["stages"]) == 2

    caplog.clear()
    idle = Sweeper(SERVED, SERVED)
    assert make_desk(path).load(idle) == 0
    assert idle.num_forwards == 0
    assert "loaded from a profile" in caplog.text


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("model", "other", "model 'other' is now 'm'"),
        ("layers_per_stage", [10, 20], r"layers_per_stage (10, 20) is now (15, 15)"),
    ],
)
def test_a_profile_of_another_run_is_refused_with_the_difference(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    field: str,
    value: object,
    named: str,
) -> None:
    path = tmp_path / "profile.json"
    serve(make_desk(path), SERVED, SERVED)
    document = json.loads(path.read_text())
    document["fingerprint"][field] = value
    path.write_text(json.dumps(document))
    executor = Sweeper(SERVED, SERVED)
    make_desk(path).load(executor)
    assert "is of another run and not used" in caplog.text
    assert named in caplog.text
    assert executor.num_forwards > 0


def test_a_profile_that_cannot_be_written_costs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    desk = make_desk(tmp_path / "missing" / "profile.json")
    serve(desk, SERVED, SERVED)
    assert desk.controller.status().state == "installed"
    assert "cannot be written" in caplog.text


def test_nothing_is_fitted_planned_or_written_before_the_background_is_asked(
    tmp_path: Path,
) -> None:
    background = Deferred()
    path = tmp_path / "profile.json"
    desk = make_desk(path, background)
    serve(desk, SERVED, scaled(SERVED, 1.3))
    assert desk.controller.status().state == "collecting"
    assert background.num_waiting == 1
    desk.deliver()
    assert desk.controller.status().state == "installed"
    assert not path.exists()
    desk.deliver()
    assert path.exists()
    desk.submitted(
        SubmitSequence(
            sequence_id=7,
            prompt_token_ids=[1] * 4000,
            sampling=SamplingParams(max_tokens=1),
            arrival_time=0.0,
        ),
        cached_tokens=0,
    )
    assert background.num_waiting == 1
    desk.deliver()
    stats = desk.stats(10.0)
    assert sum(stats.last_plan) == 4000


def test_refreshed_decode_terms_alone_do_not_write_the_profile_again(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    desk = make_desk(path)
    serve(desk, SERVED, SERVED)
    path.unlink()
    for step_id in range(1000, 1000 + 2 * REFRESH_DECODES):
        rows = [
            StepRow(
                sequence_id=index,
                epoch=0,
                start=100 * (1 + step_id % 7) * (1 + index),
                num_tokens=1,
                sample=True,
                new_block_ids=[],
                token_ids=[5],
            )
            for index in range(1 + step_id % 5)
        ]
        desk.planned(StepPlan(step_id=step_id, starts=[], rows=rows, drops=[]))
        seconds = [0.01 + 0.001 * len(rows)] * 2
        known = StepTimes(step_id=step_id, stage_seconds=seconds)
        desk.finished(StepResult(step_id=step_id, tokens=[], times=[known]))
    assert desk.controller.status().models[0].decode_row_seconds > 0.0
    assert not path.exists()


def test_a_sweep_waits_for_the_times_of_a_device_that_tells_them_later() -> None:
    desk, prompt = make_desk(None), make_desk(None)
    late = Sweeper(SERVED, SERVED, late_steps=3)
    assert desk.load(late) > prompt.load(Sweeper(SERVED, SERVED))
    assert desk.controller.status().models == prompt.controller.status().models


def test_a_sweep_whose_times_never_come_fails_the_start() -> None:
    stuck = Sweeper(SERVED, SERVED, late_steps=1_000_000_000)
    told = r"the time of a forward pass of 128 tokens is not known after --step-timeout-seconds"
    with pytest.raises(EngineError, match=told):
        make_desk(None).load(stuck, time_limit_seconds=0.01)


def test_a_time_that_comes_late_is_learned_for_the_step_that_it_is_of() -> None:
    prompt, late = make_desk(None), make_desk(None)
    serve(prompt, SERVED, SERVED)
    serve(late, SERVED, SERVED, late_steps=3, num_steps=43)
    assert late.controller.status().models == prompt.controller.status().models
    assert late.controller.status().models


def test_steps_that_no_stage_has_timed_are_not_waited_for() -> None:
    desk = make_desk(None)
    serve(desk, SERVED, SERVED, untimed=lambda step_id: step_id % 3 == 1)
    assert desk.controller.status().models
    assert len(desk._pending) <= 1


def test_the_report_comes_every_ten_seconds_in_which_prompts_are_chunked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    desk = make_desk(None)
    for now in (100.0, 101.0, 109.0, 110.0, 111.0):
        desk.controller.report.count(
            desk.controller.planner.next_chunk(request_of(sequence_id=int(now)))
        )
        desk.report(now)
    assert caplog.text.count("Dynamic chunking since last report: ") == 2
    assert "3 by the calibration sweep" in caplog.text


def test_the_last_chunks_are_reported_though_no_step_follows(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    desk = make_desk(None)
    desk.report(100.0)
    desk.controller.report.count(desk.controller.planner.next_chunk(request_of(sequence_id=1)))
    for now in (101.0, 110.0, 111.0, 120.0, 130.0):  # beats of a head that has nothing to do
        desk.report(now)
    assert caplog.text.count("Dynamic chunking since last report: ") == 1
