"""Small loads, step by step, under every policy: what the field's servers would do with them.

One stream (0) decodes when a long prompt (1) and a short one (2) arrive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from atom_lite.scheduler.scheduler import Scheduler
from tests.fakes.scheduler_inputs import make_limits, make_submission, run_step, shape

if TYPE_CHECKING:
    from atom_lite.config_scheduling import BatchingPolicyName


def scheduler_with(policy: BatchingPolicyName, **changes: Any) -> Scheduler:
    return Scheduler(make_limits(batching_policy=policy, **changes))


def steps(scheduler: Scheduler, count: int) -> list[list[tuple[int, int]]]:
    return [shape(run_step(scheduler)[0]) for _ in range(count)]


@pytest.mark.parametrize(
    ("policy", "changes", "expected"),
    [
        # Decodes first; the long prompt in what is left of 16.
        ("stall-free", {}, [[(0, 1), (1, 15)], [(0, 1), (1, 15)], [(0, 1), (1, 10), (2, 5)]]),
        # A newcomer is later in the list, so the decode is served first here as well.
        ("unified", {}, [[(0, 1), (1, 15)], [(0, 1), (1, 15)], [(0, 1), (1, 10), (2, 5)]]),
        # The long prompt exceeds 32 and goes alone, then the short one; the stream stands still.
        ("prefill-first", {}, [[(1, 40)], [(2, 5)], [(0, 1), (1, 1), (2, 1)]]),
        # Both whole, beside the decode, in one step as long as all of them.
        ("orca", {"num_blocks": 200}, [[(0, 1), (1, 40), (2, 5)], [(0, 1), (1, 1), (2, 1)]]),
        # Nobody joins until the stream has ended.
        (
            "request-level",
            {"num_blocks": 200},
            [[(0, 1)], [(0, 1)], [(0, 1)], [(1, 40), (2, 5)], [(1, 1), (2, 1)]],
        ),
        # Chunks alone take turns with decodes, within the budget of steps with decodes.
        (
            "stall-free",
            {"enable_hybrid_batching": False},
            [
                [(0, 1)],
                [(1, 16)],
                [(0, 1)],
                [(1, 16)],
                [(0, 1)],
                [(1, 8), (2, 5)],
                [(1, 1), (2, 1)],
            ],
        ),
        # Whole prompts that do not fit beside the decode get a step of their own.
        (
            "stall-free",
            {"enable_chunked_prefill": False},
            [[(1, 40)], [(0, 1), (1, 1), (2, 5)], [(0, 1), (1, 1), (2, 1)]],
        ),
        (
            "stall-free",
            {"enable_chunked_prefill": False, "enable_hybrid_batching": False},
            [[(0, 1)], [(1, 40)], [(0, 1), (1, 1)], [(2, 5)], [(0, 1), (1, 1), (2, 1)]],
        ),
    ],
)
def test_a_long_and_a_short_prompt_beside_a_stream(
    policy: BatchingPolicyName, changes: dict[str, Any], expected: list[list[tuple[int, int]]]
) -> None:
    scheduler = scheduler_with(policy, **changes)
    scheduler.submit(make_submission(0, 4, 4), 0.0)
    run_step(scheduler)
    scheduler.submit(make_submission(1, 40, 5), 0.0)
    scheduler.submit(make_submission(2, 5, 5), 0.0)
    assert steps(scheduler, len(expected)) == expected


def test_unified_lets_an_earlier_prompt_take_what_a_later_decode_would_need() -> None:
    """The long prompt is earlier by priority; stall-free would serve the decode first."""
    expected = {"unified": [(1, 16)], "stall-free": [(0, 1), (1, 15)]}
    for policy in ("unified", "stall-free"):
        scheduler = scheduler_with(policy, scheduling_policy="priority")
        scheduler.submit(make_submission(0, 4, 20), 0.0)
        run_step(scheduler)
        scheduler.submit(make_submission(1, 40, priority=-1), 0.0)
        assert steps(scheduler, 2)[1] == expected[policy]


def test_unified_admits_nobody_in_a_step_that_preempts() -> None:
    scheduler = scheduler_with("unified", num_blocks=5, enable_prefix_caching=False)
    for sequence_id in (0, 1):
        scheduler.submit(make_submission(sequence_id, 7, 9, ignore_eos=True), 0.0)
    scheduler.submit(make_submission(2, 2), 0.0)
    assert steps(scheduler, 3) == [[(0, 7), (1, 7)], [(0, 1), (1, 1)], [(0, 1)]]
    assert scheduler.stats().num_preemptions == 1


def test_request_level_fills_no_slot_until_the_longest_of_the_batch_has_ended() -> None:
    scheduler = scheduler_with("request-level", num_blocks=200, max_num_seqs=2)
    for sequence_id, max_tokens in ((0, 1), (1, 3), (2, 1)):
        scheduler.submit(make_submission(sequence_id, 4, max_tokens), 0.0)
    assert steps(scheduler, 4) == [[(0, 4), (1, 4)], [(1, 1)], [(1, 1)], [(2, 4)]]


@pytest.mark.parametrize("policy", ["request-level", "orca"])
def test_each_sequence_reserves_the_longest_that_the_model_allows(
    policy: BatchingPolicyName,
) -> None:
    """64 blocks of 4 hold four reservations of 64 tokens, whatever the requests ask for."""
    scheduler = scheduler_with(policy, max_model_len=64)
    for sequence_id in range(6):
        scheduler.submit(make_submission(sequence_id, 4), 0.0)
    assert [sequence_id for sequence_id, _ in steps(scheduler, 1)[0]] == [0, 1, 2, 3]


def test_prefill_first_keeps_decodes_waiting_while_prompts_keep_coming() -> None:
    scheduler = scheduler_with("prefill-first", max_num_seqs=16)
    scheduler.submit(make_submission(0, 4), 0.0)
    run_step(scheduler)
    for sequence_id in range(1, 6):
        scheduler.submit(make_submission(sequence_id, 30), 0.0)
        assert steps(scheduler, 1) == [[(sequence_id, 30)]]
    assert [sequence_id for sequence_id, _ in steps(scheduler, 1)[0]] == [0, 1, 2, 3, 4, 5]
