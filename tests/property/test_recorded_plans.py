"""Plans of stall-free batching over random loads, against a recording.

A change of the scheduler that is meant to change no plan shows here that it did not. One that is
meant to: look at what `plans_of` gives before and after, then put the new digests in.
"""

from __future__ import annotations

import hashlib
import random
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from atom_lite.scheduler.scheduler import Scheduler
from tests.fakes.scheduler_inputs import CappedChunks, make_limits, make_submission
from tests.fakes.virtual_pipeline import VirtualPipeline

if TYPE_CHECKING:
    from atom_lite.messages import StepPlan, SubmitSequence

# First seed of twenty -> digest of their plans.
RECORDED = {
    0: "55d4489681334174",
    20: "44dc8ebfc69faa8f",
    40: "d5cddd36a7931feb",
    60: "a2bf833cf3a6e5e3",
}


def random_limits(rng: random.Random) -> dict[str, Any]:
    return {
        "max_num_seqs": rng.randint(1, 6),
        "decode_step_tokens": rng.randint(6, 20),
        "prefill_step_tokens": rng.randint(20, 40),
        "max_model_len": rng.randint(8, 80),
        "block_size": rng.choice([1, 2, 4, 8]),
        "num_blocks": rng.randint(4, 40),
        "enable_chunked_prefill": rng.random() < 0.7,
        "enable_prefix_caching": rng.random() < 0.5,
        "scheduling_policy": rng.choice(["fcfs", "priority"]),
        "pipeline_depth": rng.choice([1, 1, 2, 3, 4]),
    }


def random_submissions(rng: random.Random, first_id: int) -> list[SubmitSequence]:
    prompt = [rng.randint(0, 2)] * rng.choice([0, 3, 8, 16, 24, 40])
    prompt += [100 + first_id] * rng.choice([1, 2, 5, 20])
    children = rng.choice([1, 1, 1, 2, 4])
    priority = rng.randint(-1, 1)
    max_tokens = rng.choice([0, 1, 2, 5, 12, 30])
    return [
        make_submission(
            sequence_id,
            prompt,
            max_tokens,
            priority=priority,
            group=first_id if children > 1 else None,
        )
        for sequence_id in range(first_id, first_id + children)
    ]


def plans_of(seed: int, num_turns: int = 120) -> list[StepPlan]:
    """All plans of one random load over a pipeline whose stages run in a random order."""
    rng = random.Random(seed)
    limits = make_limits(**random_limits(rng))
    scheduler = Scheduler(limits, planner=CappedChunks(rng.choice([1, 3, 8, 40, 40])))
    pipeline = VirtualPipeline(limits.pipeline_depth, limits.num_blocks, limits.block_size)
    plans: list[StepPlan] = []
    num_submitted = 0
    for turn in range(num_turns):
        if rng.random() < 0.3 and num_submitted < 40:
            for message in random_submissions(rng, num_submitted):
                scheduler.submit(message, float(turn))
                num_submitted += 1
        if num_submitted and rng.random() < 0.05:
            scheduler.abort(rng.randrange(num_submitted), "abort", float(turn))
        while (plan := scheduler.schedule(float(turn))) is not None:
            plans.append(plan)
            pipeline.send(plan)
        for _ in range(rng.randint(1, 2 * limits.pipeline_depth)):
            pipeline.tick(rng.randrange(limits.pipeline_depth))
        scheduler.hand_on(pipeline.last_handed_on)
        while (result := pipeline.take_result()) is not None:
            scheduler.commit(result, float(turn))
    return plans


def digest(seeds: range) -> str:
    encoded = [msgspec.msgpack.encode(plan) for seed in seeds for plan in plans_of(seed)]
    assert len(encoded) > 10 * len(seeds)
    return hashlib.sha256(b"".join(encoded)).hexdigest()[:16]


@pytest.mark.parametrize("first", sorted(RECORDED))
def test_stall_free_plans_are_those_of_the_recording(first: int) -> None:
    assert digest(range(first, first + 20)) == RECORDED[first]
