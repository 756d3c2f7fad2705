"""Log probabilities of a tiny random model, over one stage and two, against transformers.

Prompts are cut anywhere, preempted, cached and shared; what is told of them stays the model's.
"""

from __future__ import annotations

import dataclasses
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from transformers import AutoModelForCausalLM

from atom_lite.config import CacheConfig, ParallelConfig, SchedulerConfig
from atom_lite.engine.in_process import Engine
from atom_lite.messages import SamplingParams
from tests.fakes.logprob_reader import read
from tests.logprob_oracle import Report, assert_is_the_models, collect
from tests.pipeline.tiny_run import tiny_config

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atom_lite.config import Config

PROMPTS = [[3 + (7 * i + i * i) % 90 for i in range(length)] for length in (1, 2, 16, 17, 33, 90)]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    return tiny_config(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def model(config: Config) -> Any:
    return AutoModelForCausalLM.from_pretrained(config.model.model, dtype="float32").eval()


@contextmanager
def running(config: Config) -> Iterator[Engine]:
    """An engine whose books must balance in the end."""
    with Engine(config) as engine:
        yield engine
        engine.scheduler.check_integrity()
        assert engine.scheduler.stats().kv_usage == 0


def sampling(max_tokens: int = 6, count: int | None = 4, **more: Any) -> SamplingParams:
    return SamplingParams(
        max_tokens=max_tokens,
        ignore_eos=True,
        num_logprobs=count,
        num_prompt_logprobs=count,
        **{"temperature": 0.0} | more,
    )


def ask(engine: Engine, prompts: list[list[int]], params: SamplingParams) -> list[Report]:
    ids = [engine.submit(prompt, params) for prompt in prompts]
    return [collect(engine.events(i)) for i in ids]


@pytest.mark.parametrize("stages", [1, 2])
def test_what_is_told_of_prompt_and_output_is_the_models(
    config: Config, model: Any, stages: int
) -> None:
    parallel = ParallelConfig(pipeline_parallel_size=stages)
    with running(dataclasses.replace(config, parallel=parallel)) as engine:
        cold = ask(engine, PROMPTS, sampling())
        warm = ask(engine, PROMPTS, sampling(temperature=1.0, seed=3))  # field cases 32 and 33
        nothing = ask(engine, PROMPTS, sampling(0))
    for prompt, *reports in zip(PROMPTS, cold, warm, nothing, strict=True):
        for report in reports:
            assert len(report.prompt) == len(prompt) - 1
            assert len(report.output) == len(report.token_ids)
            assert_is_the_models(model, prompt, report, tolerance=1e-4)
        assert [report.end.num_output_tokens for report in reports] == [6, 6, 0]
        assert [report.end.num_cached_tokens for report in reports] == [0, 0, 0]


@pytest.mark.parametrize("budget", [8, 11, 64])
def test_what_is_told_does_not_depend_on_where_a_prompt_is_cut(
    config: Config, model: Any, budget: int
) -> None:
    scheduler = SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=budget)
    with running(dataclasses.replace(config, scheduler=scheduler)) as engine:
        reports = ask(engine, PROMPTS, sampling())
    for prompt, report in zip(PROMPTS, reports, strict=True):
        assert_is_the_models(model, prompt, report)


def test_what_is_told_survives_preemption(config: Config, model: Any) -> None:
    cache = CacheConfig(block_size=4, num_gpu_blocks_override=30)
    small = dataclasses.replace(config.model, max_model_len=120)
    with running(dataclasses.replace(config, cache=cache, model=small)) as engine:
        reports = ask(engine, [prompt[:40] for prompt in PROMPTS[2:]], sampling(30))
        assert engine.scheduler.stats().num_preemptions > 0
    for prompt, report in zip(PROMPTS[2:], reports, strict=True):
        assert len(report.token_ids) == 30
        assert_is_the_models(model, prompt[:40], report)


@pytest.mark.parametrize("caching", [True, False])
def test_children_share_a_prompt_and_each_tells_of_its_own_tokens(
    config: Config, model: Any, caching: bool
) -> None:
    cache = dataclasses.replace(config.cache, enable_prefix_caching=caching)
    prompt = PROMPTS[-1]
    with running(dataclasses.replace(config, cache=cache)) as engine:
        ids = [
            engine.submit(
                prompt,
                SamplingParams(max_tokens=8, ignore_eos=True, seed=seed, num_logprobs=2),
                group=1,
            )
            for seed in range(4)
        ]
        reports = [collect(engine.events(i)) for i in ids]
        computed = engine.scheduler.stats().prompt_tokens_computed
    assert len({tuple(report.token_ids) for report in reports}) > 1
    assert computed == 90 + 3 * 2, "88 of 90 tokens are in full blocks"
    for report in reports:
        assert_is_the_models(model, prompt, report)


def test_a_whole_vocabulary_can_be_told(config: Config, model: Any) -> None:
    with running(config) as engine:
        [report] = ask(engine, [PROMPTS[3]], sampling(2, 96))
    for logprobs in (*report.prompt, *report.output):
        assert sorted(token for token, _ in read(logprobs).likeliest) == list(range(96))
    assert_is_the_models(model, PROMPTS[3], report)


@pytest.mark.parametrize(
    "options", [{"top_k": 1}, {"allowed_token_ids": (5,)}, {"logit_bias": {5: 100.0}}]
)
def test_field_29_what_sampling_excludes_has_a_finite_raw_probability(
    config: Config, model: Any, options: dict[str, Any]
) -> None:
    with running(config) as engine:
        reports = ask(engine, PROMPTS[2:4], sampling(3, 5, temperature=1.0, **options))
    for prompt, report in zip(PROMPTS[2:4], reports, strict=True):
        if "top_k" not in options:
            assert report.token_ids == [5, 5, 5]
        assert_is_the_models(model, prompt, report)
