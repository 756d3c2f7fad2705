"""Who may start, by the blocks that it must be sure of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from atom_lite.scheduler.scheduler import Scheduler
from tests.fakes.scheduler_inputs import (
    finished,
    make_limits,
    make_submission,
    run_step,
    run_until_idle,
)

if TYPE_CHECKING:
    from atom_lite.config_scheduling import CapacityPolicyName


def crowded(capacity: CapacityPolicyName, *, ignore_eos: bool = False) -> Scheduler:
    """Six prompts of 12 tokens that want 20 each, before a pool of 20 blocks."""
    limits = make_limits(
        num_blocks=20, max_model_len=64, prefill_step_tokens=256, capacity_policy=capacity
    )
    scheduler = Scheduler(limits)
    for sequence_id in range(6):
        scheduler.submit(make_submission(sequence_id, 12, 20, ignore_eos=ignore_eos), 0.0)
    return scheduler


@pytest.mark.parametrize(
    ("capacity", "num_started"),
    [
        ("max-utilization", 5),  # 20 blocks; each prompt of 12 and its first decode take 4
        ("no-evict", 2),  # 12 + 20 tokens less the last: 8 blocks
        ("max-length", 1),  # 64 tokens: 16 blocks
        ("watermark", 6),  # 3 each while 1 stays free; the first decodes will preempt
    ],
)
def test_as_many_start_as_the_promises_allow(
    capacity: CapacityPolicyName, num_started: int
) -> None:
    scheduler = crowded(capacity)
    assert len(run_step(scheduler)[0].starts) == num_started


@pytest.mark.parametrize(
    ("capacity", "preempts"),
    [("max-utilization", True), ("watermark", True), ("no-evict", False), ("max-length", False)],
)
def test_what_is_promised_to_the_end_is_never_preempted(
    capacity: CapacityPolicyName, preempts: bool
) -> None:
    scheduler = crowded(capacity, ignore_eos=True)
    ends = finished(run_until_idle(scheduler))
    assert [ends[i].num_output_tokens for i in range(6)] == [20] * 6
    assert (scheduler.stats().num_preemptions > 0) == preempts


def test_blocks_that_are_shared_are_promised_once() -> None:
    """The second of two equal prompts needs only what it adds: 3 of its 4 blocks are held."""
    limits = make_limits(num_blocks=9, prefill_step_tokens=256, capacity_policy="no-evict")
    scheduler = Scheduler(limits)
    for sequence_id in (0, 1):
        scheduler.submit(make_submission(sequence_id, list(range(13)), 8, ignore_eos=True), 0.0)
    plan, _ = run_step(scheduler)
    assert len(plan.starts) == 2
    run_until_idle(scheduler)
    assert scheduler.stats().num_preemptions == 0
