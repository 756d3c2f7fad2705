"""The accuracy benchmark's engine room on a tiny model: repeatable, replayable, exact sums."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING

import pytest
import torch

from atom_lite.chunking.planner import ChunkDecision, ChunkRequest
from atom_lite.chunking.planners.fixed import FixedPlanner
from atom_lite.config import CacheConfig, Config, ModelConfig, SchedulerConfig
from atom_lite.engine.limits import scheduler_limits
from atom_lite.messages import StepPlan, StepRow
from atom_lite.models.checkpoint import resolve_checkpoint
from atom_lite.scheduler.scheduler import Scheduler
from atom_lite.text.tokenizer import Tokenizer
from benchmarks.accuracy_arms import Arm, Bench, waves
from benchmarks.accuracy_verdicts import compare
from benchmarks.chunk_plans import RecordingPlanner, ReplayPlanner
from benchmarks.lockstep import Lockstep, Prompt
from benchmarks.reference_text import reference_text
from benchmarks.staged_model import StagedModel, load_staged_model
from benchmarks.tasks import QUICK_MIX, make_items
from benchmarks.text_nll import NllMeter, windows
from tests.unit.worker.test_runner import TINY

if TYPE_CHECKING:
    from atom_lite.chunking.planner import ChunkPlanner, Supply

PROMPTS = [
    Prompt([(7 * index + 3 * start) % 190 + 3 for index in range(length)], 6)
    for start, length in enumerate((90, 5, 33, 70, 90, 21))
]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    path = tmp_path_factory.mktemp("tiny")
    (path / "config.json").write_text(json.dumps(TINY))
    return Config(
        model=ModelConfig(model=str(path), load_format="dummy", dtype="float32", threads=1),
        cache=CacheConfig(block_size=4, num_gpu_blocks_override=150),
        scheduler=SchedulerConfig(max_num_seqs=4),
    )


@pytest.fixture(scope="module")
def model(config: Config) -> StagedModel:
    return load_staged_model(config, num_stages=2)


class UnevenPlanner:
    """See ChunkPlanner; another size each time."""

    def __init__(self) -> None:
        self._sizes = itertools.cycle((3, 17, 8, 29, 5, 40))

    def begin_step(self, supply: Supply) -> None:
        pass

    def next_chunk(self, request: ChunkRequest) -> ChunkDecision:
        return ChunkDecision(min(next(self._sizes), request.most_tokens), "model")

    def forget(self, sequence_id: int) -> None:
        pass


class Run:
    """All PROMPTS on an empty cache, and what came of it."""

    def __init__(
        self,
        config: Config,
        model: StagedModel,
        *,
        budget: int,
        planner: ChunkPlanner | None = None,
        dropped_tokens: int = 0,
    ) -> None:
        model.reset()
        model.dropper.dropped_tokens = dropped_tokens
        scheduler_config = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=budget)
        limits = scheduler_limits(
            Config(model=config.model, cache=config.cache, scheduler=scheduler_config),
            model.runners[0].info,
        )
        assert limits.pipeline_depth == 2
        recorder = RecordingPlanner(planner or FixedPlanner())
        scheduler = Scheduler(limits, planner=recorder)
        meter = NllMeter(model.last)
        for sequence_id, prompt in enumerate(PROMPTS):
            meter.watch(sequence_id, prompt.token_ids)
        self.outputs = Lockstep(scheduler, model, None, meter.after_step).run(PROMPTS)
        self.nll = meter.nll_by_sequence
        self.tokens = meter.tokens_by_sequence
        self.given = recorder.given
        scheduler.check_integrity()
        model.dropper.dropped_tokens = 0


def test_two_runs_are_identical_to_the_last_bit(config: Config, model: StagedModel) -> None:
    first, second = (Run(config, model, budget=24) for _ in "ab")
    assert first.outputs == second.outputs
    assert first.nll == second.nll
    assert all(first.outputs)


def test_a_replay_of_uneven_chunks_is_identical(config: Config, model: StagedModel) -> None:
    first = Run(config, model, budget=40, planner=UnevenPlanner())
    assert len({one.decision.tokens for one in first.given}) > 3
    second = Run(config, model, budget=40, planner=ReplayPlanner(first.given))
    assert first.outputs == second.outputs
    assert first.nll == second.nll


def test_likelihoods_are_those_of_the_whole_prompt(config: Config, model: StagedModel) -> None:
    chunked, whole = (Run(config, model, budget=budget) for budget in (13, 400))
    assert chunked.outputs == whole.outputs
    for sequence_id, prompt in enumerate(PROMPTS):
        assert chunked.tokens[sequence_id] == len(prompt.token_ids) - 1
        assert chunked.nll[sequence_id] == pytest.approx(whole.nll[sequence_id], rel=1e-5)


def test_a_uniform_model_has_the_likelihood_of_a_uniform_guess() -> None:
    class Uniform:
        hidden = torch.zeros(300, 8)

        def logits(self, hidden: torch.Tensor) -> torch.Tensor:
            return torch.zeros(len(hidden), 199)

    meter = NllMeter(Uniform())  # type: ignore[arg-type]
    meter.watch(5, [index % 199 for index in range(250)])
    rows = [
        StepRow(sequence_id=4, epoch=0, start=9, num_tokens=1, sample=True, token_ids=[3]),
        StepRow(sequence_id=5, epoch=0, start=50, num_tokens=200, sample=True),
    ]
    meter.after_step(StepPlan(step_id=1, starts=[], rows=rows))
    assert meter.tokens_by_sequence[5] == 199  # nothing is known about what follows the prompt
    assert meter.nll_by_sequence[5] == pytest.approx(199 * torch.tensor(199.0).log().item())


def test_the_planted_error_changes_what_chunks_predict(config: Config, model: StagedModel) -> None:
    right = Run(config, model, budget=24)
    wrong = Run(config, model, budget=24, dropped_tokens=16)
    assert right.nll != wrong.nll
    whole = Run(config, model, budget=400, dropped_tokens=16)  # no prefixes, nothing to drop
    assert whole.outputs == Run(config, model, budget=400).outputs


def test_windows_cover_the_text_once() -> None:
    assert windows(list(range(10)), num_tokens=9, window_tokens=4) == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8],
    ]
    with pytest.raises(ValueError, match="10 tokens, asked for 11"):
        windows(list(range(10)), num_tokens=11, window_tokens=4)


def test_each_item_is_asked_once_and_a_context_before_its_other_questions() -> None:
    items = make_items(QUICK_MIX, 0)
    made = waves(items)
    assert sorted(index for wave in made for index in wave) == list(range(len(items)))
    groups = [{items[index].group for index in wave} for wave in made]
    assert groups == [{-1, 0}, {0}]
    assert sum(items[index].group == 0 for index in made[0]) == 1


@pytest.mark.full
def test_the_planted_error_is_found_out_on_the_real_model() -> None:
    config = Config(
        model=ModelConfig(dtype="float32", max_model_len=2048),
        cache=CacheConfig(num_gpu_blocks_override=400),
    )
    tokenizer = Tokenizer.from_checkpoint(resolve_checkpoint(None).path)
    text = tokenizer.encode(reference_text()[:9000], add_special_tokens=False)
    cut = windows(text, num_tokens=1500, window_tokens=1500)
    bench = Bench(config, load_staged_model(config, 2), tokenizer, make_items(QUICK_MIX, 0), cut)
    fixed = bench.run(Arm("fixed", 512, "fixed", 1))
    control = bench.run(Arm("fixed 256", 256, "fixed", 1))
    planted = bench.run(Arm("planted error", 256, "fixed", 1, dropped_tokens=16))
    assert compare(fixed, control)[0], compare(fixed, control)[1]
    assert not compare(fixed, planted)[0], compare(fixed, planted)[1]
