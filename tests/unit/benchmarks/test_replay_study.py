"""What is measured how often, and how the winner is judged, over a meter with known times."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from atom_lite.chunking.latency_model import LatencyModel
from atom_lite.simulation.replay import Measurements, Probe
from atom_lite.simulation.replay_process import ChunkSeconds
from benchmarks.chunk_arms import DEFAULT_ARMS
from benchmarks.chunking_report import page, write_reports
from benchmarks.replay_record import (
    results_json,
    settings_from,
    study_from,
    study_json,
)
from benchmarks.replay_study import Study, StudySettings, contenders, ratio_to_best, run_study
from benchmarks.stream_client import LoadError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

PER_LAYER = LatencyModel(
    constant_seconds=1e-3,
    prefix_seconds_per_token=0.0,
    linear_seconds_per_token=1e-4,
    attention_seconds_per_area=5e-9,
)
SETTINGS = StudySettings(
    splits={2: (15, 15), 4: (8, 8, 7, 7)},
    lengths=(1024, 4096),
    arms=DEFAULT_ARMS,
    budget_tokens=512,
    rounds=4,
    seconds=1000.0,
    clock="wall",
    seed=3,
)


class FormulaMeter:
    """A ReplayMachine whose stages take what a formula says, times some noise."""

    def __init__(self, noise: float = 0.0) -> None:
        self._noise = noise
        self._source = random.Random(9)
        self.rounds: list[set[Probe]] = []

    def measure(
        self,
        probes: Iterable[Probe],
        record: Callable[[Probe, ChunkSeconds], None],
        *,
        seed: int,
    ) -> None:
        self.rounds.append(set(probes))
        for probe in self.rounds[-1]:
            seconds = probe.num_layers * PER_LAYER.chunk_seconds(
                probe.prefix_tokens, probe.new_tokens
            )
            seconds *= self._source.gauss(1.0, self._noise)
            record(probe, ChunkSeconds(seconds=seconds, cpu_seconds=0.5, model_seconds=seconds))


def studied(meter: FormulaMeter, settings: StudySettings = SETTINGS) -> Study:
    study = Study(settings=settings, measurements=Measurements(draw_seconds=0.01))
    run_study(meter, study, lambda _: None)
    return study


def document_of(study: Study) -> dict[str, object]:
    return {
        "command": "x",
        "time": "now",
        "machine": {"cpu": "c", "cores": 2, "memory_gib": 1, "python": "3", "versions": {}},
        "model": "m",
        "dtype": "float32",
        "seed": 3,
        "lengths": [1024, 4096],
        "replay": study_json(study) | {"results": results_json(study)},
    }


@pytest.fixture(scope="module")
def exact() -> tuple[FormulaMeter, Study]:
    meter = FormulaMeter()
    return meter, studied(meter)


def test_models_are_fitted_to_the_measured_times(exact: tuple[FormulaMeter, Study]) -> None:
    models = exact[1].models
    assert [len(models[stages]) for stages in (2, 4)] == [2, 4]
    for stages, split in SETTINGS.splits.items():
        for model, layers in zip(models[stages], split, strict=True):
            for prefix, new in ((0, 256), (3000, 512)):
                predicted = model.chunk_seconds(prefix, new)
                assert predicted == pytest.approx(
                    layers * PER_LAYER.chunk_seconds(prefix, new), rel=0.01
                )


def test_makespan_wins_where_the_model_is_exact(exact: tuple[FormulaMeter, Study]) -> None:
    study = exact[1]
    for point in study.cuts:
        for family in ("fixed-", "atom"):
            ratio = ratio_to_best(study, point, family)
            assert ratio is not None and ratio.median <= 1.005, (point, family, ratio)


def test_prompts_of_16k_and_32k_are_replayed_too() -> None:
    study = studied(FormulaMeter(), SETTINGS._replace(lengths=(16384, 32768), rounds=1))
    for stages, tokens in study.cuts:
        sizes = study.cuts[stages, tokens]["makespan"]
        assert sum(sizes) == tokens
        assert sizes[0] > sizes[-1]
        for family in ("fixed-", "atom"):
            ratio = ratio_to_best(study, (stages, tokens), family)
            assert ratio is not None and ratio.median <= 1.005, (stages, tokens, family, ratio)


def test_no_probe_is_measured_twice_in_a_round(exact: tuple[FormulaMeter, Study]) -> None:
    meter, study = exact
    fixed, sweep, fitted, *later = meter.rounds
    assert not fixed & sweep and not (fixed | sweep) & fitted
    assert len(later) == SETTINGS.rounds - 1
    samples = study.measurements.samples
    assert set(samples) == fixed | sweep | fitted
    assert max(len(times) for times in samples.values()) == SETTINGS.rounds


def test_only_contenders_are_measured_again(exact: tuple[FormulaMeter, Study]) -> None:
    study = exact[1]
    for point, cuts in study.cuts.items():
        close = contenders(study, point)
        assert "makespan" in close
        assert "fixed-4096" not in close
        assert len(close) < len(cuts)
        assert all(study.num_samples(point, arm) == SETTINGS.rounds for arm in close)


def test_noise_shows_in_the_interval() -> None:
    study = studied(FormulaMeter(noise=0.05))
    ratio = ratio_to_best(study, (4, 4096), "fixed-")
    assert ratio is not None and ratio.low is not None and ratio.high is not None
    assert 0.001 < ratio.high - ratio.low < 0.2
    assert ratio.low < 1.0


def test_the_cpu_clock_takes_the_threads_own_time() -> None:
    settings = SETTINGS._replace(
        lengths=(4096,), arms=("fixed-256", "fixed-512", "fixed-1024", "makespan"), clock="cpu"
    )
    with pytest.raises(LoadError, match="do not rise"):  # the meter's CPU time never changes
        studied(FormulaMeter(), settings)


def test_a_study_survives_its_document(exact: tuple[FormulaMeter, Study]) -> None:
    study = exact[1]
    document = {"seed": 3, "lengths": [1024, 4096], "replay": study_json(study)}
    again = study_from(study_json(study), settings_from(document))
    assert again.measurements == study.measurements
    assert again.cuts == study.cuts
    assert again.models == study.models
    assert study_json(again) == study_json(study)


def test_a_study_of_other_lengths_is_not_gone_on_with(exact: tuple[FormulaMeter, Study]) -> None:
    document = {"seed": 3, "lengths": [1024], "replay": study_json(exact[1])}
    again = study_from(study_json(exact[1]), settings_from(document))
    with pytest.raises(LoadError, match="other prompt lengths"):
        run_study(exact[0], again, lambda _: None)


def test_the_page_shows_every_pipeline_and_length(
    exact: tuple[FormulaMeter, Study], tmp_path: Path
) -> None:
    document = document_of(exact[1])
    text = page(document)
    for row in ("PP2 1024", "PP4 4096", "stage 3 |", "Predicted against measured"):
        assert row in text
    assert write_reports(document, tmp_path / "out") == text
    assert (tmp_path / "out.trace.json").exists()
