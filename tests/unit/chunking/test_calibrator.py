import random
from collections.abc import Iterable

import pytest

from atom_lite.chunking.background import Background
from atom_lite.chunking.calibrator import (
    LOOK_AGAIN_SAMPLES,
    MAX_BACK_OFF_SAMPLES,
    REFIT_SAMPLES,
    REFRESH_DECODES,
    Calibrator,
    StepSample,
)
from atom_lite.chunking.latency_model import Chunk, LatencyModel
from atom_lite.chunking.planner import plan_limits
from atom_lite.chunking.refusal import Notice
from tests.fakes.deferred import Deferred
from tests.unit.chunking.samples import SERVED, fixed_chunks, scaled

LIMITS = plan_limits(4096)
WITH_DECODES = LatencyModel(
    constant_seconds=SERVED.constant_seconds,
    prefix_seconds_per_token=SERVED.prefix_seconds_per_token,
    linear_seconds_per_token=SERVED.linear_seconds_per_token,
    attention_seconds_per_area=SERVED.attention_seconds_per_area,
    decode_row_seconds=0.001,
    decode_context_seconds_per_token=2e-7,
)


class Machine:
    """Stages with true models and noise, whose steps a calibrator sees."""

    def __init__(
        self,
        *stages: LatencyModel,
        noise: float = 0.03,
        seed: int = 0,
        background: Background | None = None,
    ) -> None:
        self.stages = stages
        self.calibrator = Calibrator(len(stages), LIMITS, background)
        self.noise = noise
        self._rng = random.Random(seed)

    def step(self, chunks: tuple[Chunk, ...], *, rows: int = 0, context: int = 0) -> list[Notice]:
        seconds = tuple(
            model.predict(chunks, decode_rows=rows, decode_context_tokens=context)
            * max(self._rng.gauss(1.0, self.noise), 0.05)
            for model in self.stages
        )
        return self.calibrator.record(StepSample(chunks, seconds, rows, context))

    def prompts(self, sizes: Iterable[int], tokens: int = 8192) -> list[str]:
        texts = []
        for size in sizes:
            for chunk in fixed_chunks(tokens, size):
                texts += [notice.text for notice in self.step((chunk,))]
        return texts

    def decode(self, num_steps: int) -> None:
        for _ in range(num_steps):
            rows = self._rng.randint(1, 16)
            self.step((), rows=rows, context=rows * self._rng.randint(100, 4000))


def error(machine: Machine, stage: int = 0) -> float:
    assert machine.calibrator.models is not None
    model, truth = machine.calibrator.models[stage], machine.stages[stage]
    return max(
        abs(model.chunk_seconds(*c) / truth.chunk_seconds(*c) - 1.0)
        for c in fixed_chunks(8192, 1024)
    )


def test_prompts_of_two_sizes_install_a_model_per_stage() -> None:
    machine = Machine(SERVED, scaled(SERVED, 1.3))
    assert machine.calibrator.state == "collecting"
    assert machine.calibrator.models is None
    lines = machine.prompts((1024, 2816, 512))
    assert machine.calibrator.state == "installed"
    installed = [line for line in lines if "model installed" in line]
    assert len(installed) == 2
    assert installed[0].startswith("Dynamic chunking latency model installed: a=")
    assert "on stage 1 (fitted to" in installed[1]
    assert error(machine, 0) < 0.1
    assert error(machine, 1) < 0.1


def test_one_chunk_size_is_refused_with_the_reason_and_looked_at_again_soon() -> None:
    machine = Machine(SERVED)
    lines = machine.prompts([1024] * 40)
    assert machine.calibrator.state == "collecting"
    assert "chunk sizes from 1024 to 1024" in machine.calibrator.reason
    assert machine.calibrator.last_refusal is not None
    assert machine.calibrator.last_refusal.gate == "samples"
    assert machine.calibrator.num_refused == 1 + (320 - 12) // 4
    # Logged ever more rarely: the 1st, 2nd, 4th, ... 64th.
    refused = [line for line in lines if "refused (samples)" in line]
    assert len(refused) == 7
    assert refused[0].endswith("there is no model yet, next try after 4 samples")


def chaos(machine: Machine, num_steps: int) -> list[str]:
    rng = random.Random(9)
    texts = []
    for _ in range(num_steps):
        chunk = Chunk(rng.choice((0, 1024, 4096)), rng.choice((256, 512, 2048)))
        seconds = rng.choice((0.001, 0.1, 10.0))
        texts += [n.text for n in machine.calibrator.record(StepSample((chunk,), (seconds,)))]
    return texts


def test_fits_that_do_not_fit_are_tried_ever_later() -> None:
    machine = Machine(SERVED)
    chaos(machine, 12 + 24 + 48 + 96)
    assert machine.calibrator.state == "collecting"
    assert machine.calibrator.num_refused == 4
    lines = chaos(machine, 192 + 384 + 512 + 512)
    assert machine.calibrator.num_refused == 8
    assert lines[-1].endswith(f"next try after {MAX_BACK_OFF_SAMPLES} samples")


def test_it_never_gives_up() -> None:
    machine = Machine(SERVED)
    machine.prompts([1024] * 400)
    assert machine.calibrator.state == "collecting"
    machine.prompts([512, 2048] * 30)
    assert machine.calibrator.state == "installed"
    assert machine.calibrator.num_refused > 5


@pytest.mark.parametrize("factor", [0.6, 1.3, 2.0])
def test_a_drifted_machine_is_refitted(factor: float) -> None:
    machine = Machine(SERVED)
    machine.prompts((1024, 2816, 1024, 2816))
    machine.stages = (scaled(SERVED, factor),)
    # From now on one size only, as a plan would pick it: it could not tell the terms apart.
    lines = machine.prompts([1024] * 20)
    assert any("drifted" in line for line in lines)
    assert any(line.startswith("Dynamic chunking latency model refitted") for line in lines)
    assert machine.calibrator.state == "installed"
    assert error(machine) < 0.1


def test_only_attention_getting_slower_is_refitted_too() -> None:
    machine = Machine(SERVED)
    machine.prompts((1024, 2816, 1024, 2816))
    slower = LatencyModel.from_milliseconds(a=5e-5, b=0.015, c=3.0, gamma=0.002)
    machine.stages = (slower,)
    machine.prompts((896, 2048, 640) * 6)
    assert error(machine) < 0.1


def test_noise_of_15_percent_installs_and_does_not_drift_all_day() -> None:
    machine = Machine(SERVED, noise=0.15)
    lines = machine.prompts((1024, 2816) * 40)
    assert machine.calibrator.state == "installed"
    assert error(machine) < 0.12
    assert sum("drifted" in line for line in lines) <= 1


def test_the_old_model_stays_while_a_drift_is_unresolved() -> None:
    machine = Machine(SERVED)
    machine.prompts((1024, 2816) * 12)
    old = machine.calibrator.models
    machine.stages = (scaled(SERVED, 2.0),)
    states = []
    while machine.calibrator.models == old:
        machine.step((Chunk(1024 * (len(states) % 8), 1024),))
        states.append(machine.calibrator.state)
    assert states.index("drifting") < 10
    assert states.count("drifting") >= REFIT_SAMPLES - 1
    assert states[-1] == "installed"
    assert "drifted" not in machine.calibrator.reason


def test_a_young_model_that_misfits_is_fitted_again_now_and_then_and_not_at_each_step() -> None:
    machine = Machine(SERVED)
    machine.prompts((1024, 2816, 512))
    assert machine.calibrator.state == "installed"
    machine.noise = 0.9  # nothing fits any more
    fits = machine.calibrator.num_installed + machine.calibrator.num_refused
    num_steps = 20
    for index in range(num_steps):
        machine.step((Chunk(1024 * (index % 8), 1024),))
    fits = machine.calibrator.num_installed + machine.calibrator.num_refused - fits
    assert 1 <= fits <= num_steps // LOOK_AGAIN_SAMPLES


def test_one_slow_stage_drifts_alone_and_is_found() -> None:
    machine = Machine(SERVED, SERVED, SERVED)
    machine.prompts((1024, 2816) * 3)
    assert machine.calibrator.state == "installed"
    machine.stages = (SERVED, scaled(SERVED, 1.3), SERVED)
    machine.prompts((1024, 2816) * 6)
    assert machine.calibrator.models is not None
    first, second, third = (m.chunk_seconds(4096, 1024) for m in machine.calibrator.models)
    assert second / first == pytest.approx(1.3, rel=0.08)
    assert third / first == pytest.approx(1.0, rel=0.08)


def test_decode_terms_come_from_decode_only_steps() -> None:
    machine = Machine(WITH_DECODES, noise=0.01)
    machine.decode(100)
    machine.prompts((1024, 2816, 512))
    assert machine.calibrator.models is not None
    (model,) = machine.calibrator.models
    assert model.decode_row_seconds == pytest.approx(0.001, rel=0.15)
    assert model.decode_context_seconds_per_token == pytest.approx(2e-7, rel=0.15)


def test_drawing_counts_where_rows_decode_and_not_for_a_prompts_last_chunk() -> None:
    machine = Machine(SERVED, noise=0.0)
    plain = Machine(SERVED, noise=0.0)
    for size in (1024, 2816, 512, 1024, 2816):
        for chunk in fixed_chunks(8192, size):
            seconds = (SERVED.chunk_seconds(*chunk),)
            is_last = chunk.prefix_tokens + chunk.new_tokens == 8192
            draw = 0.050 if is_last else 0.0
            plain.calibrator.record(StepSample((chunk,), seconds))
            machine.calibrator.record(StepSample((chunk,), seconds, draw_seconds=draw))
    assert machine.calibrator.models == plain.calibrator.models
    assert machine.calibrator.models is not None
    for rows in (*range(1, 17),) * 5:
        seconds = (SERVED.constant_seconds + 0.001 * rows,)
        sample = StepSample((), seconds, rows, rows * 100, draw_seconds=0.002 * rows)
        machine.calibrator.record(sample)
    (model,) = machine.calibrator.models
    assert model.predict((), decode_rows=8, decode_context_tokens=800) == pytest.approx(
        SERVED.constant_seconds + 0.003 * 8, rel=0.02
    )


def test_decode_terms_are_brought_up_to_date_between_prompts() -> None:
    machine = Machine(WITH_DECODES, noise=0.01)
    machine.prompts((1024, 2816, 512))
    before = machine.calibrator.models
    assert before is not None
    assert before[0].decode_row_seconds == 0.0
    machine.decode(100)
    after = machine.calibrator.models
    assert after is not None
    assert after[0].decode_row_seconds == pytest.approx(0.001, rel=0.15)
    assert after[0].without_decodes() == before[0]


def test_decode_terms_are_refreshed_in_the_background() -> None:
    background = Deferred()
    machine = Machine(WITH_DECODES, noise=0.01, background=background)
    machine.decode(100)
    assert background.num_waiting == 0  # the first fit brings its own
    machine.prompts((1024, 2816, 512))
    background.work()
    before = machine.calibrator.models
    assert before is not None
    machine.decode(REFRESH_DECODES)
    assert background.num_waiting == 1
    assert machine.calibrator.models == before
    background.work()
    after = machine.calibrator.models
    assert after is not None and after != before
    assert after[0].without_decodes() == before[0].without_decodes()


def test_graph_replays_say_nothing_about_eager_decodes() -> None:
    machine = Machine(WITH_DECODES, noise=0.01)
    for rows in range(1, 40):
        machine.calibrator.record(
            StepSample((), (0.0001 * rows,), rows, rows * 1000, is_graph_replay=True)
        )
    machine.prompts((1024, 2816, 512))
    assert machine.calibrator.models is not None
    assert machine.calibrator.models[0].decode_row_seconds == 0.0


def test_mixed_steps_with_few_new_tokens_are_not_fitted() -> None:
    machine = Machine(WITH_DECODES)
    for _ in range(100):
        machine.step((Chunk(0, 128),), rows=64, context=64_000)
        machine.step((Chunk(0, 32),))
    assert machine.calibrator.reason == "no step has been timed yet"


@pytest.mark.parametrize("seconds", [(0.0, 1.0), (1.0,), (1.0, -1.0)])
def test_times_that_cannot_be_right_are_dropped(seconds: tuple[float, ...]) -> None:
    calibrator = Calibrator(2, LIMITS)
    assert not calibrator.keep(StepSample((Chunk(0, 1024),), seconds))


def test_the_error_shown_is_that_of_the_last_predictions() -> None:
    machine = Machine(SERVED, noise=0.0)
    assert machine.calibrator.recent_error is None
    machine.prompts((1024, 2816, 512))
    assert machine.calibrator.recent_error is not None
    assert machine.calibrator.recent_error < 1e-3
    machine.stages = (scaled(SERVED, 1.25),)
    for chunk in list(fixed_chunks(8192, 1024))[:3] * 15:
        machine.step((chunk,))
    assert machine.calibrator.num_installed > 1 or machine.calibrator.recent_error > 0.1


def test_a_profile_is_adopted_without_a_sample() -> None:
    machine = Machine(SERVED, SERVED)
    notices = machine.calibrator.adopt((SERVED, SERVED), (None, None))
    assert machine.calibrator.state == "installed"
    assert len(notices) == 2
    assert "loaded from a profile" in notices[0].text
    machine.stages = (scaled(SERVED, 1.5), scaled(SERVED, 1.5))
    machine.prompts((1024, 2816) * 4)
    assert error(machine) < 0.1


def test_a_fit_in_the_background_is_taken_when_it_is_done() -> None:
    background = Deferred()
    machine = Machine(SERVED, background=background)
    lines = machine.prompts((1024, 2816, 512))
    assert background.num_waiting == 1  # one at a time, however many steps have passed
    assert machine.calibrator.models is None
    assert lines == []
    background.work()
    assert machine.calibrator.state == "installed"
    (notice,) = machine.calibrator.take_notices()
    assert notice.text.startswith("Dynamic chunking latency model installed")
    assert machine.calibrator.take_notices() == []


def test_a_fit_on_rows_from_before_a_drift_is_dropped() -> None:
    background = Deferred()
    machine = Machine(SERVED, background=background)
    machine.prompts((1024, 2816, 1024, 2816))
    background.work()
    machine.prompts((1024, 2816) * 3)
    background.work()
    machine.prompts((1024, 2816) * 6)  # the next refit is asked for, and has not run
    assert background.num_waiting == 1
    machine.stages = (scaled(SERVED, 2.0),)
    machine.prompts([1024])
    assert machine.calibrator.state == "drifting"
    before = machine.calibrator.models
    background.work()
    assert machine.calibrator.models == before
    machine.prompts((1024, 2816) * 3)
    background.work()
    assert error(machine) < 0.1


def test_uncertain_fits_wait_for_as_many_samples_as_are_missing() -> None:
    machine = Machine(SERVED, noise=0.25)
    lines = []
    for position in range(0, 6000, 500):  # twelve rows
        lines += machine.step((Chunk(position, 128 if position % 1000 else 372),))
    (line,) = (notice.text for notice in lines)
    assert "refused (uncertainty)" in line
    assert line.endswith("next try after 16 samples")
