"""The policies as the engine holds them, driven the way the engine drives them."""

import random

from atom_lite.chunking.atom_calibrator import AtomCalibrator
from atom_lite.chunking.calibrator import Calibrator, StepSample
from atom_lite.chunking.controller import (
    AtomController,
    ChunkingController,
    FittedController,
    StaticController,
)
from atom_lite.chunking.latency_model import Chunk, LatencyModel
from atom_lite.chunking.planner import ChunkRequest, Supply, plan_limits
from atom_lite.chunking.planners.atom import AtomPlanner, AtomSettings
from atom_lite.chunking.planners.fixed import FixedPlanner
from atom_lite.chunking.planners.makespan import MakespanPlanner
from atom_lite.chunking.planners.sglang import SglangPlanner, SglangSettings
from tests.unit.chunking.samples import SERVED, scaled

ATTENTION_FREE = LatencyModel.from_milliseconds(a=0.0, b=0.015, c=9.0)


class Engine:
    """Runs startup sweeps and prompts through a controller on simulated stages."""

    def __init__(
        self, controller: ChunkingController, *stages: LatencyModel, noise: float = 0.02
    ) -> None:
        self.controller = controller
        self.log: list[str] = []
        self.budget = 2048
        self._stages = stages
        self._noise = noise
        self._rng = random.Random(0)
        self._next_id = 0

    def start(self) -> int:
        """Run the startup sweep; how many forwards it took."""
        sweep = self.controller.startup()
        num_forwards = 0
        while sweep is not None and (shape := sweep.next_shape()) is not None:
            models = [ATTENTION_FREE] * len(self._stages)
            if not sweep.is_attention_free:
                models = list(self._stages)
            sweep.finish_shape([self._time(model, shape) for model in models])
            num_forwards += 1
        if sweep is not None:
            self._note(sweep.finish())
        return num_forwards

    def prompt(self, tokens: int = 8192, *, num_prefills: int = 1) -> list[int]:
        """Serve one prompt; its chunk sizes."""
        sizes: list[int] = []
        self._next_id += 1
        planner = self.controller.planner
        while (done := sum(sizes)) < tokens:
            planner.begin_step(Supply(num_prefills))
            request = ChunkRequest(
                sequence_id=self._next_id,
                prefix_tokens=done,
                remaining_tokens=tokens - done,
                budget_tokens=self.budget,
            )
            decision = planner.next_chunk(request)
            self.controller.report.count(decision)
            sizes.append(decision.tokens)
            chunk = Chunk(done, decision.tokens)
            if self.controller.wants_sample(num_sequences=1, num_prefills=1):
                seconds = tuple(self._time(model, chunk) for model in self._stages)
                sample = StepSample((chunk,), seconds, first_sequence_id=self._next_id)
                self._note(self.controller.record(sample))
            self._note(self.controller.end_step())
        planner.forget(self._next_id)
        return sizes

    def _time(self, model: LatencyModel, chunk: Chunk) -> float:
        return model.chunk_seconds(*chunk) * (1.0 + self._rng.uniform(-self._noise, self._noise))

    def _note(self, notices: list) -> None:  # type: ignore[type-arg]
        self.log += [notice.text for notice in notices]


def atom_engine(*stages: LatencyModel) -> Engine:
    settings = AtomSettings(budget_tokens=2048, min_chunk_tokens=128, max_model_len=16384)
    calibrator = AtomCalibrator(settings, num_stages=len(stages))
    return Engine(AtomController(AtomPlanner(settings), calibrator), *stages)


def makespan_engine(*stages: LatencyModel, noise: float = 0.02) -> Engine:
    limits = plan_limits(2048)
    controller = FittedController(
        MakespanPlanner(limits),
        Calibrator(len(stages), limits),
        limits,
        max_model_len=16384,
    )
    return Engine(controller, *stages, noise=noise)


def test_atom_installs_from_its_own_traffic_and_then_sizes_chunks() -> None:
    engine = atom_engine(SERVED, SERVED)
    assert engine.start() == 1 + 2 * 24
    assert engine.controller.needs_acknowledgement
    first = [engine.prompt() for _ in range(6)]
    assert first[0] == [512] * 16
    assert first[1] == [2048] * 4
    assert any(line.startswith("Dynamic chunking latency model installed") for line in engine.log)
    status = engine.controller.status()
    assert status.state == "installed"
    assert len(status.models) == 1
    sizes = engine.prompt()
    assert sizes[0] == 2048
    assert sizes[1] < 2048
    line = engine.controller.report.line()
    assert line is not None
    assert "chunks sized by the model" in line


def test_atom_a_burst_before_calibration_keeps_chunks_fixed() -> None:
    engine = atom_engine(SERVED, SERVED)
    engine.start()
    assert engine.prompt(num_prefills=4) == [2048] * 4
    assert engine.controller.report.total_by_reason["other_prefills"] == 4


def test_atom_off_needs_no_startup() -> None:
    settings = AtomSettings(budget_tokens=2048, min_chunk_tokens=2048)
    calibrator = AtomCalibrator(settings, num_stages=2)
    engine = Engine(AtomController(AtomPlanner(settings), calibrator), SERVED, SERVED)
    assert engine.start() == 0
    assert engine.prompt(4096) == [2048, 2048]
    assert engine.controller.status().state == "off"
    assert not engine.controller.needs_acknowledgement


def test_makespan_is_installed_after_its_startup_sweep() -> None:
    engine = makespan_engine(SERVED, scaled(SERVED, 1.3))
    engine.start()
    assert engine.controller.status().state == "installed"
    assert len(engine.controller.status().models) == 2
    sizes = engine.prompt()
    assert engine.controller.report.total_by_reason["model"] == len(sizes)


def test_makespan_startup_stops_at_two_seconds_and_traffic_does_the_rest() -> None:
    slow = scaled(SERVED, 60.0)
    engine = makespan_engine(slow, slow)
    num_forwards = engine.start()
    assert 1 <= num_forwards < 9
    assert engine.controller.status().state == "collecting"
    for _ in range(4):
        engine.prompt()
    assert engine.controller.status().state == "installed"
    assert engine.controller.status().recent_error is None or (
        engine.controller.status().recent_error < 0.1
    )


def test_makespan_calibrates_in_a_burst_too() -> None:
    engine = makespan_engine(SERVED, SERVED)
    for _ in range(4):
        engine.prompt(num_prefills=8)
    assert engine.controller.status().state == "installed"


def test_makespan_with_a_loaded_profile_has_no_startup_sweep() -> None:
    engine = makespan_engine(SERVED, SERVED)
    assert isinstance(engine.controller, FittedController)
    notices = engine.controller.adopt((SERVED, SERVED), (None, None))
    assert notices[0].text.startswith("Dynamic chunking latency model installed")
    assert engine.start() == 0
    engine.prompt()
    assert engine.controller.report.total_by_reason["sweep"] == 0


def test_sglang_runs_on_the_same_calibration() -> None:
    limits = plan_limits(2048)
    settings = SglangSettings(base_tokens=2048, page_tokens=16, max_model_len=16384)
    calibrator = Calibrator(2, limits)
    controller = FittedController(SglangPlanner(settings), calibrator, limits, max_model_len=16384)
    engine = Engine(controller, SERVED, SERVED)
    engine.start()
    sizes = engine.prompt()
    assert sizes[0] == 2048
    assert sizes[1] < 2048


def test_static_policies_learn_nothing() -> None:
    engine = Engine(StaticController(FixedPlanner(1024), "fixed chunks"), SERVED)
    assert engine.start() == 0
    assert engine.prompt(4096) == [1024] * 4
    assert engine.controller.status().state == "off"
    assert engine.controller.record(StepSample((Chunk(0, 1),), (1.0,))) == []
