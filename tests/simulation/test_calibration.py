"""How soon the makespan policy has a model, on machines as they are: noisy, uneven, drifting.

Prompts arrive one after another, as from one client. Every stage's true model is known, so a plan
can be judged by what it costs under the truth. All seeds of a case must hold.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from atom_lite.chunking.calibrator import Calibrator, StepSample
from atom_lite.chunking.controller import FittedController
from atom_lite.chunking.cuts import Span
from atom_lite.chunking.latency_model import Chunk, LatencyModel
from atom_lite.chunking.plan_search import Pipeline, plan
from atom_lite.chunking.planner import ChunkRequest, Supply, plan_limits
from atom_lite.chunking.planners.makespan import MakespanPlanner
from atom_lite.chunking.profile import Fingerprint, Profile, load_profile, save_profile
from tests.unit.chunking.samples import scaled

if TYPE_CHECKING:
    from pathlib import Path

LIMITS = plan_limits(512)
CONTEXT = 8192
# Half of SmolLM2-135M on one core of a laptop, and on the same core shared with other work.
QUIET = LatencyModel.from_milliseconds(a=5e-5, b=0.4, c=6.0, gamma=0.004)
SHARED = LatencyModel.from_milliseconds(a=4e-4, b=1.6, c=45.0, gamma=0.03)


class Server:
    """The policy over simulated stages; prompts one at a time."""

    def __init__(
        self, *stages: LatencyModel, noise: float, stragglers: float = 0.0, seed: int = 0
    ) -> None:
        self.stages = stages
        self.calibrator = Calibrator(len(stages), LIMITS)
        self.controller = FittedController(
            MakespanPlanner(LIMITS), self.calibrator, LIMITS, max_model_len=CONTEXT
        )
        self.log: list[str] = []
        self.noise = noise
        self.stragglers = stragglers
        self.rng = random.Random(seed)
        self.num_prompts = 0

    def start(self) -> None:
        sweep = self.controller.startup()
        assert sweep is not None
        while (shape := sweep.next_shape()) is not None:
            sweep.finish_shape(self._times(shape))
        self.log += [notice.text for notice in sweep.finish()]

    def prompt(self) -> list[str]:
        """Serve a prompt of 2000 to 7500 tokens; why its chunks had their sizes."""
        tokens, position = self.rng.randrange(2000, 7500), 0
        self.num_prompts += 1
        reasons: list[str] = []
        while position < tokens:
            self.controller.planner.begin_step(Supply(1))
            decision = self.controller.planner.next_chunk(
                ChunkRequest(
                    sequence_id=self.num_prompts,
                    prefix_tokens=position,
                    remaining_tokens=tokens - position,
                    budget_tokens=LIMITS.most,
                )
            )
            chunk = Chunk(position, decision.tokens)
            reasons.append(decision.reason)
            sample = StepSample((chunk,), self._times(chunk), first_sequence_id=self.num_prompts)
            self.log += [notice.text for notice in self.controller.record(sample)]
            position += decision.tokens
        return reasons

    def prompts_until_installed(self, most: int) -> int:
        while self.calibrator.models is None and self.num_prompts < most:
            self.prompt()
        assert self.calibrator.models is not None, self.calibrator.reason
        return self.num_prompts

    def loss(self) -> float:
        """How much longer prompts take than with plans from the true models, at worst."""
        assert self.calibrator.models is not None
        learned = Pipeline(models=self.calibrator.models, limits=LIMITS)
        truth = Pipeline(models=self.stages, limits=LIMITS)
        losses = []
        for tokens in (2048, 4096, 7500):
            span = Span(0, tokens)
            best = plan(truth, span).predicted_seconds
            losses.append(truth.makespan(span, plan(learned, span).sizes) / best - 1.0)
        return max(losses)

    def _times(self, chunk: Chunk) -> tuple[float, ...]:
        return tuple(
            model.chunk_seconds(*chunk)
            * max(self.rng.gauss(1.0, self.noise), 0.3)
            * (3.0 if self.rng.random() < self.stragglers else 1.0)
            for model in self.stages
        )


class Changing(Server):
    """Stages that become slower or faster after eight steps, before there can be a model."""

    def __init__(self, *factors: float, seed: int) -> None:
        super().__init__(*[SHARED] * len(factors), noise=0.03, seed=seed)
        self._later = tuple(scaled(SHARED, factor) for factor in factors)
        self._num_steps = 0

    def _times(self, chunk: Chunk) -> tuple[float, ...]:
        self._num_steps += 1
        if self._num_steps > 8:
            self.stages = self._later
        return super()._times(chunk)


class Chaos(Server):
    """Stages whose times have nothing to do with what they compute."""

    def _times(self, chunk: Chunk) -> tuple[float, ...]:
        return tuple(self.rng.choice((0.05, 0.5, 5.0)) for _ in self.stages)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("machine", [QUIET, SHARED], ids=["quiet", "shared"])
def test_a_calm_machine_has_a_model_after_two_long_prompts(
    machine: LatencyModel, seed: int
) -> None:
    server = Server(machine, machine, noise=0.03, seed=seed)
    server.start()
    assert server.prompts_until_installed(2) <= 2
    assert server.loss() < 0.05
    assert set(server.prompt()) == {"model"}


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("factor", [1.0, 1.3], ids=["even", "last_stage_slower"])
def test_noise_of_15_percent_with_stragglers_has_a_model_after_five_long_prompts(
    factor: float, seed: int
) -> None:
    server = Server(SHARED, scaled(SHARED, factor), noise=0.15, stragglers=0.05, seed=seed)
    server.start()
    assert server.prompts_until_installed(5) <= 5
    # A first model costs something, and the next prompts make up for it.
    assert server.loss() < 0.15
    for _ in range(12):
        server.prompt()
    assert server.loss() < 0.06
    assert any(line.startswith("Dynamic chunking latency model installed") for line in server.log)


@pytest.mark.parametrize("seed", range(3))
def test_times_without_rhyme_or_reason_never_make_a_model(seed: int) -> None:
    server = Chaos(SHARED, SHARED, noise=0.0, seed=seed)
    for _ in range(20):
        assert set(server.prompt()) == {"sweep"}
    assert server.calibrator.models is None
    assert any("refused" in line for line in server.log)


@pytest.mark.parametrize("noise", [0.03, 0.15])
@pytest.mark.parametrize("seed", range(3))
def test_a_machine_that_becomes_half_as_fast_is_noticed_and_refitted(
    noise: float, seed: int
) -> None:
    server = Server(SHARED, SHARED, noise=noise, stragglers=0.02, seed=seed)
    server.start()
    for _ in range(6):
        server.prompt()
    server.stages = (scaled(SHARED, 2.0), scaled(SHARED, 2.0))
    for _ in range(8):
        server.prompt()
    assert any("drifted" in line for line in server.log)
    assert any("model refitted" in line for line in server.log)
    assert server.calibrator.models is not None
    for model in server.calibrator.models:
        ratio = model.chunk_seconds(3000, 384) / server.stages[0].chunk_seconds(3000, 384)
        assert 0.8 < ratio < 1.2


@pytest.mark.parametrize("seed", [2, 3])
@pytest.mark.parametrize("factors", [(0.5, 0.5), (1.0, 4.0), (5.0, 5.0)], ids=str)
def test_a_machine_that_changes_before_the_first_fit_is_known_after_five_prompts(
    factors: tuple[float, ...], seed: int
) -> None:
    server = Changing(*factors, seed=seed)
    server.start()
    for _ in range(5):
        server.prompt()
    assert server.loss() < 0.06


def test_only_the_slow_stage_is_learned_as_slow() -> None:
    server = Server(QUIET, scaled(QUIET, 1.3), noise=0.05)
    server.start()
    for _ in range(6):
        server.prompt()
    assert server.calibrator.models is not None
    first, last = (model.chunk_seconds(2000, 384) for model in server.calibrator.models)
    assert last / first == pytest.approx(1.3, rel=0.1)


def test_a_restarted_server_plans_with_the_saved_profile_from_its_first_chunk(
    tmp_path: Path,
) -> None:
    first = Server(QUIET, QUIET, noise=0.05)
    first.start()
    first.prompts_until_installed(4)
    status = first.controller.status()
    fingerprint = Fingerprint(
        model="m", dtype="float32", device="cpu", num_threads=1, layers_per_stage=(15, 15)
    )
    path = tmp_path / "profile.json"
    save_profile(
        path, Profile(fingerprint=fingerprint, models=status.models, qualities=status.qualities)
    )
    saved = load_profile(path)
    assert saved is not None
    second = Server(QUIET, QUIET, noise=0.05, seed=1)
    second.controller.adopt(saved.models, saved.qualities)
    assert second.controller.startup() is None
    assert set(second.prompt()) == {"model"}
    assert second.loss() == first.loss()
