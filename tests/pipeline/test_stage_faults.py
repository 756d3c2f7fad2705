"""Faults of real stages: each ends the run within a bounded time, with an error for everybody.

The head is in this process; the fault is in a follower, or in the head's own forward pass.
"""

from __future__ import annotations

import dataclasses
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from atom_lite.config import ChunkingConfig, Config, ParallelConfig
from atom_lite.engine import followers
from atom_lite.engine.in_process import Engine
from atom_lite.errors import ConfigError, EngineError
from atom_lite.messages import SamplingParams, SequenceFinished
from atom_lite.worker import runner as runner_module
from tests.pipeline.faults import LOADING, VARIABLE, fault
from tests.pipeline.tiny_run import tiny_config

if TYPE_CHECKING:
    from collections.abc import Iterator

STEP_TIMEOUT_SECONDS = 2.0
# The limit above or a hang's 10 s, one beat of the head, and the end of all processes.
BOUND_SECONDS = 30.0
# What processes need to come up on a machine that is busy, too.
STARTUP_SECONDS = 40.0


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    return dataclasses.replace(
        tiny_config(tmp_path_factory.mktemp("tiny")),
        parallel=ParallelConfig(
            pipeline_parallel_size=3, step_timeout_seconds=STEP_TIMEOUT_SECONDS
        ),
    )


@pytest.fixture(autouse=True)
def no_orphans() -> Iterator[None]:
    before = set(psutil.Process().children(recursive=True))
    yield
    left = set(psutil.Process().children(recursive=True)) - before
    assert not left, f"orphan processes: {left}"


def plant(monkeypatch: pytest.MonkeyPatch, *, layer: int, kind: str, step_id: int) -> None:
    monkeypatch.setenv(VARIABLE, fault(layer=layer, kind=kind, step_id=step_id))
    monkeypatch.setattr(followers, "STAGE_MODULE", "tests.pipeline.faulty_stage")


def errors_of_open_sequences(config: Config, disturb: signal.Signals | None = None) -> list[str]:
    """Serve five sequences until the run ends; what each was told."""
    engine = Engine(config)
    sampling = SamplingParams(max_tokens=90, ignore_eos=True)
    ids = [engine.submit([5 + index] * 10, sampling) for index in range(5)]
    streams = [engine.events(sequence_id) for sequence_id in ids]
    started = time.monotonic()
    if disturb is not None:
        next(streams[0])
        psutil.Process().children()[-1].send_signal(disturb)
    errors = []
    for stream in streams:
        *_, last = stream
        assert isinstance(last, SequenceFinished)
        assert last.reason == "error"
        errors.append(last.error or "")
    engine.close()
    assert time.monotonic() - started < BOUND_SECONDS
    return errors


@pytest.mark.full
@pytest.mark.parametrize("stage", [1, 2])
def test_a_forward_pass_that_is_stuck_is_named_with_its_stage_and_step(
    config: Config, monkeypatch: pytest.MonkeyPatch, stage: int
) -> None:
    plant(monkeypatch, layer=stage, kind="hang", step_id=6)
    for error in errors_of_open_sequences(config):
        assert f"stage {stage} has not ended step 6 within --step-timeout-seconds 2" in error


def test_a_stage_that_raises_says_why(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, layer=1, kind="raise", step_id=6)
    for error in errors_of_open_sequences(config):
        assert "stage 1 failed: ValueError: planted" in error


@pytest.mark.full
def test_a_stage_that_dies_in_a_step_is_named(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, layer=2, kind="die", step_id=6)
    for error in errors_of_open_sequences(config):
        assert "stage 2" in error


@pytest.mark.full
def test_a_stopped_stage_ends_the_run_and_is_killed(config: Config) -> None:
    patient = dataclasses.replace(
        config, parallel=dataclasses.replace(config.parallel, step_timeout_seconds=600.0)
    )
    for error in errors_of_open_sequences(patient, disturb=signal.SIGSTOP):
        assert "stage 2 is gone: it has stopped answering" in error


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("raise", "stage 1 failed: ValueError: planted"),
        pytest.param("die", "stage 1", marks=pytest.mark.full),
        pytest.param("hang", "stage 1 has not ended step 2", marks=pytest.mark.full),
    ],
)
def test_a_fault_in_the_startup_sweep_fails_the_start(
    config: Config, monkeypatch: pytest.MonkeyPatch, kind: str, told: str
) -> None:
    plant(monkeypatch, layer=1, kind=kind, step_id=2)
    sweeping = dataclasses.replace(
        config,
        chunking=ChunkingConfig(enable_dynamic_chunking=True),
        scheduler=dataclasses.replace(config.scheduler, max_num_batched_tokens=256),
    )
    started = time.monotonic()
    with pytest.raises(EngineError, match=told):
        Engine(sweeping)
    assert time.monotonic() - started < BOUND_SECONDS


@pytest.fixture
def stuck_head(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """The head hangs while it loads, until the test is over; set once it does."""
    entered, released = threading.Event(), threading.Event()

    def hang(*_args: Any, **_options: Any) -> Any:
        entered.set()
        released.wait()
        raise AssertionError("the test is over")

    monkeypatch.setattr(runner_module, "load_stage", hang)
    yield entered
    released.set()


@pytest.mark.full
def test_a_head_that_hangs_while_it_loads_fails_the_start(
    config: Config, stuck_head: threading.Event
) -> None:
    parallel = dataclasses.replace(config.parallel, startup_timeout_seconds=STARTUP_SECONDS)
    told = r"stage 0 did not load within 40 s \(--startup-timeout-seconds\) after all other stages"
    started = time.monotonic()
    with pytest.raises(EngineError, match=told):
        Engine(dataclasses.replace(config, parallel=parallel))
    assert stuck_head.is_set()
    assert time.monotonic() - started < BOUND_SECONDS + STARTUP_SECONDS


@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("hang", r"stage 1 did not load within 40 s \(--startup-timeout-seconds\) after stage 0"),
        ("raise", "stage 1 failed: ValueError: planted"),
        ("die", "stage 1"),
    ],
)
def test_a_fault_while_a_stage_loads_fails_the_start(
    config: Config, monkeypatch: pytest.MonkeyPatch, kind: str, told: str
) -> None:
    plant(monkeypatch, layer=1, kind=kind, step_id=LOADING)
    parallel = dataclasses.replace(config.parallel, startup_timeout_seconds=STARTUP_SECONDS)
    started = time.monotonic()
    with pytest.raises(EngineError, match=told):
        Engine(dataclasses.replace(config, parallel=parallel))
    assert time.monotonic() - started < BOUND_SECONDS + STARTUP_SECONDS


def test_what_a_stage_finds_wrong_with_flags_or_files_is_the_operators_mistake(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, layer=1, kind="refuse", step_id=LOADING)
    with pytest.raises(ConfigError, match=r"^stage 1: planted$"):
        Engine(config)
