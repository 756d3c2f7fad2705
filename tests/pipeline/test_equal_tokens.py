"""The real model gives the same greedy tokens over any number of stages and for any chunk sizes.

The reference is one stage with fixed chunks. "The same" is exact in this sense: at a first
difference the two candidate logits lie within 1e-4 of each other in transformers' model, and at
most 1 % of the prompts differ at all. Every difference is printed.
"""

from __future__ import annotations

import dataclasses
import random
from pydoc_data.topics import topics
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import torch

from atom_lite.chunking.calibrator import Calibrator
from atom_lite.chunking.controller import FittedController
from atom_lite.chunking.planner import plan_limits
from atom_lite.chunking.planners.makespan import MakespanPlanner
from atom_lite.config import ChunkingConfig, Config, ModelConfig, ParallelConfig, SchedulerConfig
from atom_lite.engine.chunking_policy import make_controller
from atom_lite.engine.in_process import Engine
from atom_lite.messages import SamplingParams
from atom_lite.text.tokenizer import Tokenizer
from tests.unit.chunking.samples import SERVED

if TYPE_CHECKING:
    from pathlib import Path

    from atom_lite.chunking.background import Background
    from atom_lite.chunking.controller import ChunkingController
    from atom_lite.scheduler.limits import SchedulerLimits

TIE = 1e-4
# A step costs next to nothing, so that prompts are cut however many of them share the stages.
CHEAP_STEPS = dataclasses.replace(SERVED, constant_seconds=1e-5)


class Setup(NamedTuple):
    stages: int
    budget: int  # tokens of a step
    is_model_sized: bool = False


REFERENCE = Setup(1, 512)
SETUPS = {
    "two_stages": Setup(2, 256),
    "three_stages": Setup(3, 192),
    "two_stages_model_sized": Setup(2, 512, is_model_sized=True),
    "three_stages_model_sized": Setup(3, 512, is_model_sized=True),
}


def fitted(config: Config, limits: SchedulerLimits, background: Background) -> ChunkingController:
    """Policy makespan with its model given, so that every prompt is cut by it on any machine."""
    if not config.chunking.enable_dynamic_chunking:
        return make_controller(config, limits, background)
    sizes = plan_limits(limits.prefill_step_tokens)
    num_stages = limits.pipeline_depth
    controller = FittedController(
        MakespanPlanner(sizes, background=background),
        Calibrator(num_stages, sizes, background),
        sizes,
        max_model_len=limits.max_model_len,
    )
    controller.adopt((CHEAP_STEPS,) * num_stages, (None,) * num_stages)
    return controller


def prompts(tokenizer: Tokenizer, count: int, longest: int) -> list[list[int]]:
    """English prose at hand, the documentation in Python's own library; lengths up to `longest`."""
    text = "\n".join(topics[name] for name in sorted(topics))
    ids = tokenizer.encode(text[:400_000], add_special_tokens=False)
    source = random.Random(11)
    lengths = [round(longest * (index + 1) / count) for index in range(count)]
    return [
        ids[start : start + length]
        for length in lengths
        for start in [source.randrange(len(ids) - length)]
    ]


def outputs(setup: Setup, asked: list[list[int]], num_outputs: int) -> list[list[int]]:
    config = Config(
        model=ModelConfig(dtype="float32", max_model_len=4096),
        scheduler=SchedulerConfig(max_num_batched_tokens=setup.budget),
        chunking=ChunkingConfig(enable_dynamic_chunking=setup.is_model_sized),
        parallel=ParallelConfig(pipeline_parallel_size=setup.stages),
    )
    sampling = SamplingParams(max_tokens=num_outputs, temperature=0.0, ignore_eos=True)
    with Engine(config, controller_maker=fitted) as engine:
        ids = [engine.submit(prompt, sampling) for prompt in asked]
        collected = [engine.collect(sequence_id) for sequence_id in ids]
        assert engine.scheduler.stats().kv_usage == 0
        chunking = engine.stats.chunking
        assert chunking is not None
        assert (chunking.chunks_by_reason.get("model", 0) > len(asked)) == setup.is_model_sized
    return collected


def first_difference(one: list[int], other: list[int]) -> int | None:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), None)


def assert_equal(
    asked: list[list[int]], expected: list[list[int]], got: list[list[int]], oracle: Any
) -> None:
    """`oracle` is called for transformers' model where something differs."""
    num_differing = 0
    for prompt, theirs, mine in zip(asked, expected, got, strict=True):
        at = first_difference(theirs, mine)
        if at is None:
            continue
        num_differing += 1
        with torch.inference_mode():
            logits = oracle()(torch.tensor([prompt + theirs[:at]])).logits[0, -1]
        pair = logits[theirs[at]].item(), logits[mine[at]].item()
        print(f"prompt of {len(prompt)} tokens differs at output {at}: logits {pair}")
        assert abs(pair[0] - pair[1]) <= TIE
    assert num_differing <= max(1, len(asked) // 100)


def check(names: list[str], sizes: tuple[int, int, int], gguf: Path, oracle: Any) -> None:
    """`sizes`: number of prompts, tokens of the longest, output tokens."""
    count, longest, num_outputs = sizes
    asked = prompts(Tokenizer.from_checkpoint(gguf), count, longest)
    expected = outputs(REFERENCE, asked, num_outputs)
    for name in names:
        print(name)
        assert_equal(asked, expected, outputs(SETUPS[name], asked, num_outputs), oracle)


def test_stages_and_model_sized_chunks_give_the_tokens_of_one_stage(
    smollm2_gguf: Path, request: pytest.FixtureRequest
) -> None:
    names = ["three_stages", "two_stages_model_sized"]
    check(names, (2, 500, 12), smollm2_gguf, lambda: request.getfixturevalue("smollm2_oracle"))


@pytest.mark.full
@pytest.mark.timeout(7200)
def test_stages_and_model_sized_chunks_give_the_tokens_of_one_stage_for_200_prompts(
    smollm2_gguf: Path, request: pytest.FixtureRequest
) -> None:
    sizes = (200, 1000, 64)
    check(list(SETUPS), sizes, smollm2_gguf, lambda: request.getfixturevalue("smollm2_oracle"))
