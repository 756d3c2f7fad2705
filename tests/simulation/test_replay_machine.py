"""Replay measures real stages in two processes, on a tiny model."""

from pathlib import Path

import pytest

from atom_lite.config import CacheConfig, Config, ModelConfig
from atom_lite.errors import ConfigError, EngineError
from atom_lite.parallel.affinity import usable_cpus
from atom_lite.simulation import replay_machine
from atom_lite.simulation.replay import Probe, probes_of, replay
from atom_lite.simulation.replay_machine import ReplayMachine, calibrated, deal_stages
from atom_lite.simulation.replay_process import ChunkSeconds
from tests.unit.models.tiny_models import CONFIGS, make_model, save

PROMPT_TOKENS = 128
SPLITS = ((2, 1), (1, 1, 1))
needs_two_cpus = pytest.mark.skipif(len(usable_cpus()) < 2, reason="replay needs two CPUs")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    path: Path = tmp_path_factory.mktemp("tiny")
    save(make_model(CONFIGS["llama"]), path)
    return Config(
        model=ModelConfig(model=str(path), dtype="float32", max_model_len=PROMPT_TOKENS),
        cache=CacheConfig(num_gpu_blocks_override=PROMPT_TOKENS // 16),
    )


@needs_two_cpus
def test_every_probe_is_measured_once_a_round_and_replays(config: Config) -> None:
    sizes = {arm: (arm,) * (PROMPT_TOKENS // arm) for arm in (32, 64)}
    probes = {p for cuts in sizes.values() for split in SPLITS for p in probes_of(split, cuts)}
    with ReplayMachine(config, SPLITS, PROMPT_TOKENS) as machine:
        measurements = calibrated(machine, PROMPT_TOKENS)

        def record(probe: Probe, taken: ChunkSeconds) -> None:
            assert 0 < taken.model_seconds <= taken.seconds
            measurements.add(probe, taken.seconds)

        for seed in range(3):
            machine.measure(probes, record, seed=seed)
        machine.measure([], record, seed=0)
    assert set(measurements.samples) == probes
    assert all(len(samples) == 3 for samples in measurements.samples.values())
    assert measurements.hop.latency_seconds > 0
    assert measurements.draw_seconds >= 0
    for split in SPLITS:
        taken = replay(measurements, split, sizes[32])
        assert taken.makespan_seconds > max(taken.busy_seconds) > 0


@needs_two_cpus
def test_a_process_that_cannot_load_ends_the_measurement(config: Config, tmp_path: Path) -> None:
    broken = Config(model=ModelConfig(model=str(tmp_path / "none")), cache=config.cache)
    with pytest.raises(EngineError, match="replay process ended with exit code 1"):
        ReplayMachine(broken, SPLITS, PROMPT_TOKENS)


def test_one_core_is_refused(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    one = usable_cpus()[:1]
    monkeypatch.setattr(replay_machine, "usable_cpus", lambda: one)
    with pytest.raises(ConfigError, match="needs 2 CPUs"):
        ReplayMachine(config, SPLITS, PROMPT_TOKENS)


def test_kinds_of_stages_are_dealt_evenly_and_a_single_one_goes_to_both() -> None:
    assert deal_stages([15, 8, 7, 4, 3]) == {15: (0,), 8: (1,), 7: (1,), 4: (0,), 3: (1,)}
    assert deal_stages([15, 15]) == {15: (0, 1)}
