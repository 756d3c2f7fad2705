"""Pairs and loads over a real pipeline of a tiny model, and what is made of their runs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
import torch

from atom_lite.config import CacheConfig, Config, ModelConfig, SchedulerConfig
from benchmarks import chunking_load, chunking_pairs
from benchmarks.chunk_arms import distinct_fixed_arms
from benchmarks.chunking_load import LoadRuns, LoadSettings
from benchmarks.chunking_pairs import PairRun, Pairs, PairSettings
from benchmarks.chunking_report import page
from benchmarks.pipeline_arms import LEARNER, PairedPipeline
from benchmarks.stream_client import LoadError
from tests.unit.models.tiny_models import CONFIGS, make_model, save

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LONGEST = 192
ARMS = ("fixed-32", "fixed-64", LEARNER)
SETTINGS = PairSettings(lengths=(96, LONGEST), arms=ARMS, rounds=3, seconds=600.0, seed=1)


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PairedPipeline]:
    path: Path = tmp_path_factory.mktemp("tiny")
    save(make_model(CONFIGS["llama"]), path)
    config = Config(
        model=ModelConfig(model=str(path), dtype="float32", threads=1),
        cache=CacheConfig(num_gpu_blocks_override=100),
        scheduler=SchedulerConfig(max_num_seqs=8),
    )
    before = (torch.get_num_threads(), os.sched_getaffinity(0))
    with PairedPipeline(config, longest_tokens=LONGEST, budget_tokens=64) as pipeline:
        yield pipeline
    assert (torch.get_num_threads(), os.sched_getaffinity(0)) == before


def run_of(phase: str, index: int, arm: str, seconds: float, tokens: int = LONGEST) -> PairRun:
    return PairRun(phase=phase, round=index, tokens=tokens, arm=arm, seconds=seconds, chunks=[])


def test_each_arm_cuts_its_own_prompts(pipeline: PairedPipeline) -> None:
    for arm, sizes in distinct_fixed_arms(ARMS, LONGEST).items():
        run = pipeline.time_to_first_token(arm, [5] * LONGEST)
        assert tuple(chunk.new_tokens for chunk in run.chunks) == sizes
        assert [chunk.prefix_tokens for chunk in run.chunks] == [
            sum(sizes[:index]) for index in range(len(sizes))
        ]
        assert all(min(chunk.stage_seconds) > 0 for chunk in run.chunks)
        assert run.seconds > 0
    ours = pipeline.time_to_first_token(LEARNER, [5] * LONGEST)
    assert sum(chunk.new_tokens for chunk in ours.chunks) == LONGEST
    assert max(chunk.new_tokens for chunk in ours.chunks) <= 64


def test_other_arms_wait_for_makespans_model(pipeline: PairedPipeline) -> None:
    if not pipeline.controller.models:
        with pytest.raises(LoadError, match="atom needs a fitted model"):
            pipeline.controller.use("atom")


def test_prompts_at_once_and_streams_beside_a_prompt_are_timed(pipeline: PairedPipeline) -> None:
    settings = LoadSettings(
        arms=ARMS,
        longest_tokens=LONGEST,
        equal_arm="fixed-64",
        rounds=1,
        seconds=600.0,
        seed=1,
        levels=((3, 128),),
        control_seconds=0.1,
    )
    saves: list[int] = []
    load = LoadRuns(settings, pipeline, (), lambda: saves.append(len(load.runs)))
    load.run()
    assert saves == [4, 8]
    result: dict[str, Any] = chunking_load.as_json(load)
    assert result["throughput"][0]["makespan_tokens_per_second"] > 0
    assert result["interference"]["gap_p99_seconds"].keys() == {LEARNER, "fixed-64"}
    again = LoadRuns(settings, None, load.runs)
    again.run()  # everything is there, so nothing is run
    assert chunking_load.as_json(again) == result


def test_the_best_is_judged_on_runs_that_did_not_pick_it() -> None:
    runs = [
        run_of("pick", 0, "fixed-32", 1.0),
        run_of("pick", 0, "fixed-64", 1.1),
        *(run_of("judge", i, "fixed-32", 2.0) for i in range(3)),
        *(run_of("judge", i, LEARNER, 1.9) for i in range(3)),
    ]
    pairs = Pairs(SETTINGS, None, runs)
    assert pairs.best_fixed(LONGEST) == "fixed-32"
    ratio = pairs.ratio(LONGEST, "fixed-32")
    assert ratio is not None
    assert (ratio.median, ratio.pairs) == (pytest.approx(0.95), 3)
    assert pairs.ratio(LONGEST, "fixed-64") is None
    assert pairs.median(LONGEST, "fixed-64") == 1.1


def test_a_document_is_taken_up_where_it_ended(pipeline: PairedPipeline) -> None:
    old = [run_of("pick", index, arm, 1.0) for arm in ARMS[:2] for index in range(2)]
    old += [run_of("judge", 0, arm, 1.0) for arm in (LEARNER, "fixed-32")]
    settings = SETTINGS._replace(lengths=(LONGEST,), rounds=2)
    pairs = Pairs(settings, pipeline, old)
    pairs.judge()
    fresh = pairs.runs[len(old) :]
    assert [(run.phase, run.round, run.arm) for run in fresh] == [
        ("judge", 1, "fixed-32"),
        ("judge", 1, LEARNER),
    ]


def test_the_page_shows_pairs_and_load() -> None:
    runs = [run_of("pick", 0, "fixed-32", 1.0, tokens) for tokens in SETTINGS.lengths]
    document = {
        "command": "x",
        "time": "now",
        "machine": {"cpu": "c", "cores": 2, "memory_gib": 1, "python": "3", "versions": {}},
        "model": "m",
        "dtype": "float32",
        "seed": 3,
        "pairs": chunking_pairs.as_json(Pairs(SETTINGS, None, runs)),
    }
    text = page(document)
    assert "| 192 | fixed-32 | 1.000 | - | - | - | - |" in text
