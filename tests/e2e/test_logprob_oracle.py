"""Log probabilities of the real model equal transformers' in fp32, of generated and prompt tokens.

Cold and from the cache, with chunks that cut anywhere, over one stage and two.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from atom_lite.config import Config, ModelConfig, ParallelConfig, SchedulerConfig
from atom_lite.engine.in_process import Engine
from atom_lite.engine.limits import engine_ready, scheduler_limits
from atom_lite.messages import SamplingParams
from atom_lite.text.tokenizer import Tokenizer
from atom_lite.worker.runner import Runner
from tests.e2e.test_oracle import make_prompts
from tests.fakes.logprob_reader import read
from tests.logprob_oracle import Report, assert_is_the_models, collect

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = Config(
    model=ModelConfig(dtype="float32", max_model_len=1024),
    scheduler=SchedulerConfig(max_num_batched_tokens=512, max_num_seqs=16),
)


@pytest.fixture(scope="module")
def runner() -> Runner:
    return Runner.load(CONFIG)


@pytest.fixture(scope="module")
def prompts(smollm2_gguf: Path) -> list[list[int]]:
    return make_prompts(Tokenizer.from_checkpoint(smollm2_gguf), 6, 200)


def sampling(**more: Any) -> SamplingParams:
    return SamplingParams(max_tokens=5, ignore_eos=True, num_logprobs=5, **more)


def ask(engine: Engine, prompts: list[list[int]], params: SamplingParams) -> list[Report]:
    ids = [engine.submit(prompt, params) for prompt in prompts]
    return [collect(engine.events(i)) for i in ids]


def check(model: Any, prompts: list[list[int]], reports: list[Report]) -> None:
    for prompt, report in zip(prompts, reports, strict=True):
        assert len(report.output) == 5
        assert_is_the_models(model, prompt, report)


@pytest.mark.parametrize("budget", [17, 512])
def test_numbers_equal_the_oracles_for_any_chunk_budget(
    runner: Runner, smollm2_oracle: Any, prompts: list[list[int]], budget: int
) -> None:
    limits = dataclasses.replace(
        scheduler_limits(CONFIG, runner.info),
        decode_step_tokens=budget,
        prefill_step_tokens=budget,
    )
    runner.reset()
    with Engine.from_parts(limits, runner, engine_ready(limits, runner.info)) as engine:
        cold = ask(engine, prompts, sampling(temperature=0.0, num_prompt_logprobs=20))
        cached = ask(engine, prompts, sampling(seed=1))
        again = ask(engine, prompts, sampling(seed=1, num_prompt_logprobs=20))
        assert engine.scheduler.stats().prefix_cache_hits > 0
    for reports in (cold, cached, again):
        check(smollm2_oracle, prompts, reports)
    assert [len(report.prompt) for report in again] == [len(prompt) - 1 for prompt in prompts]
    # Field case 32: the cache, filled meanwhile, changes nothing of what is told.
    for before, after in zip(cold, again, strict=True):
        values = [read(logprobs).logprob for logprobs in before.prompt]
        assert [read(p).logprob for p in after.prompt] == pytest.approx(values, abs=1e-5)


def test_numbers_equal_the_oracles_over_two_stages(
    smollm2_oracle: Any, prompts: list[list[int]]
) -> None:
    parallel = ParallelConfig(pipeline_parallel_size=2)
    with Engine(dataclasses.replace(CONFIG, parallel=parallel)) as engine:
        reports = ask(engine, prompts, sampling(num_prompt_logprobs=3))
    check(smollm2_oracle, prompts, reports)


@pytest.mark.full
def test_numbers_of_a_hundred_prompts_equal_the_oracles(
    runner: Runner, smollm2_oracle: Any, smollm2_gguf: Path
) -> None:
    many = make_prompts(Tokenizer.from_checkpoint(smollm2_gguf), 100, 600)
    limits = scheduler_limits(CONFIG, runner.info)
    runner.reset()
    with Engine.from_parts(limits, runner, engine_ready(limits, runner.info)) as engine:
        reports = ask(engine, many, sampling(num_prompt_logprobs=20))
    check(smollm2_oracle, many, reports)
