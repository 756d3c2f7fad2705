"""Greedy tokens equal transformers' on the same weights in fp32, whatever the batch looks like.

"Equal" is exact in this sense: at a first difference the two candidate logits lie within 1e-4 of
each other in the reference, and at most 1 % of the prompts differ at all. Every difference is
printed. Source: design of the project, "Proof".
"""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass
from pydoc_data.topics import topics
from typing import TYPE_CHECKING, Any

import pytest
import torch

from atom_lite.config import CacheConfig, Config, ModelConfig, SchedulerConfig
from atom_lite.engine.in_process import Engine
from atom_lite.engine.limits import engine_ready, scheduler_limits
from atom_lite.messages import SamplingParams
from atom_lite.text.tokenizer import Tokenizer
from atom_lite.worker.runner import Runner

if TYPE_CHECKING:
    from pathlib import Path

    from atom_lite.scheduler.scheduler import SchedulerLimits

TIE = 1e-4
OUTPUT_TOKENS = 16
CONFIG = Config(
    model=ModelConfig(dtype="float32"), scheduler=SchedulerConfig(max_num_batched_tokens=512)
)


@dataclass(frozen=True)
class Case:
    prompt: list[int]
    expected: list[int]
    logits: torch.Tensor  # [OUTPUT_TOKENS, V], the reference's


def lengths(count: int, longest: int) -> list[int]:
    """Prompt lengths from 1 to `longest`, spread evenly on a log scale, block edges included."""
    edges = [1, 2, 15, 16, 17, 32, 33, 64, 100]
    ratio = longest ** (1 / (count - len(edges) - 1))
    return sorted(edges + [round(ratio**i) for i in range(count - len(edges))])[:count]


def make_prompts(tokenizer: Tokenizer, count: int, longest: int) -> list[list[int]]:
    """Distinct prompts of English prose at hand: the documentation in Python's own library."""
    text = "\n".join(topics[name] for name in sorted(topics))
    ids = tokenizer.encode(text[:400_000], add_special_tokens=False)
    starts = random.Random(7)
    return [
        ids[start : start + length]
        for length in lengths(count, longest)
        for start in [starts.randrange(len(ids) - length)]
    ]


def reference(model: Any, prompt: list[int]) -> Case:
    with torch.inference_mode():
        out = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=OUTPUT_TOKENS,
            min_new_tokens=OUTPUT_TOKENS,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
            pad_token_id=0,
        )
    logits = torch.cat(out.logits)
    return Case(prompt, out.sequences[0, len(prompt) :].tolist(), logits)


@pytest.fixture(scope="module")
def cases(smollm2_oracle: Any, smollm2_gguf: Path) -> list[Case]:
    tokenizer = Tokenizer.from_checkpoint(smollm2_gguf)
    return [reference(smollm2_oracle, p) for p in make_prompts(tokenizer, 24, 1000)]


@pytest.fixture(scope="module")
def runner() -> Runner:
    return Runner.load(CONFIG)


def run(
    runner: Runner, cases: list[Case], limits: SchedulerLimits, *, together: bool = True
) -> list[list[int]]:
    """Outputs of all cases; one after the other, or all submitted at once."""
    # transformers masks EOS for min_new_tokens; min_tokens does the same here
    sampling = SamplingParams(
        max_tokens=OUTPUT_TOKENS, min_tokens=OUTPUT_TOKENS, temperature=0.0, ignore_eos=True
    )
    runner.reset()
    with Engine.from_parts(limits, runner, engine_ready(limits, runner.info)) as engine:
        if together:
            ids = [engine.submit(case.prompt, sampling) for case in cases]
            outputs = [engine.collect(i) for i in ids]
        else:
            outputs = [engine.complete(case.prompt, sampling) for case in cases]
        engine.scheduler.check_integrity()
        assert engine.scheduler.stats().kv_usage == 0
        run.stats = engine.scheduler.stats()  # type: ignore[attr-defined]
    return outputs


def assert_exact(cases: list[Case], outputs: list[list[int]]) -> None:
    differing = 0
    for case, output in zip(cases, outputs, strict=True):
        assert len(output) == OUTPUT_TOKENS
        if output == case.expected:
            continue
        differing += 1
        at = next(i for i in range(OUTPUT_TOKENS) if output[i] != case.expected[i])
        mine, theirs = (case.logits[at, tokens[at]].item() for tokens in (output, case.expected))
        print(f"prompt of {len(case.prompt)} tokens differs at output {at}: {mine} {theirs}")
        assert abs(mine - theirs) <= TIE
    assert differing <= len(cases) // 100


def limits(runner: Runner, **changes: Any) -> SchedulerLimits:
    return dataclasses.replace(scheduler_limits(CONFIG, runner.info), **changes)


def chunked(runner: Runner, budget: int) -> SchedulerLimits:
    return limits(
        runner,
        decode_step_tokens=budget,
        prefill_step_tokens=budget,
        max_num_seqs=min(budget, 64),
        enable_prefix_caching=False,
    )


@pytest.mark.parametrize("budget", [64, 100, 8192])
def test_tokens_equal_the_oracle_for_any_chunk_budget(
    runner: Runner, cases: list[Case], budget: int
) -> None:
    assert_exact(cases, run(runner, cases, chunked(runner, budget)))


def test_tokens_equal_the_oracle_one_at_a_time(runner: Runner, cases: list[Case]) -> None:
    some = cases[::2]
    assert_exact(some, run(runner, some, limits(runner), together=False))


def test_tokens_equal_the_oracle_with_prefix_hits(runner: Runner, cases: list[Case]) -> None:
    some = cases[::3]
    outputs = run(runner, some + some, limits(runner))
    assert run.stats.prefix_cache_hits > 0  # type: ignore[attr-defined]
    assert_exact(some + some, outputs)


def test_tokens_equal_the_oracle_under_forced_preemption(cases: list[Case]) -> None:
    config = dataclasses.replace(CONFIG, cache=CacheConfig(block_size=4))
    small_blocks = Runner.load(config)
    short = [case for case in cases if 10 < len(case.prompt) < 120]
    pool = (max(len(case.prompt) for case in short) + OUTPUT_TOKENS) // 4 + 2
    tight = dataclasses.replace(
        scheduler_limits(config, small_blocks.info), num_blocks=pool, enable_prefix_caching=False
    )
    outputs = run(small_blocks, short, tight)
    assert run.stats.num_preemptions > 0  # type: ignore[attr-defined]
    assert_exact(short, outputs)


@pytest.mark.parametrize("order", [1, 2])
def test_tokens_do_not_depend_on_company_or_order(
    runner: Runner, cases: list[Case], order: int
) -> None:
    shuffled = random.Random(order).sample([c for c in cases if len(c.prompt) < 500], 12)
    assert_exact(shuffled, run(runner, shuffled, limits(runner)))


@pytest.mark.full
@pytest.mark.parametrize("budget", [64, 100, 512, 8192])
def test_two_hundred_prompts_equal_the_oracle(
    runner: Runner, smollm2_oracle: Any, smollm2_gguf: Path, budget: int
) -> None:
    tokenizer = Tokenizer.from_checkpoint(smollm2_gguf)
    prompts = make_prompts(tokenizer, 180, 600) + make_prompts(tokenizer, 20, 2000)
    many = [reference(smollm2_oracle, prompt) for prompt in prompts]
    assert_exact(many, run(runner, many, chunked(runner, budget)))
