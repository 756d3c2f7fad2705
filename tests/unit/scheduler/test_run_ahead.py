"""What a step that may run ahead is worth: the real scheduler, stages with a virtual clock."""

from __future__ import annotations

from typing import Any

import pytest

from atom_lite.scheduler.scheduler import Scheduler
from tests.fakes.clockwork import Clockwork
from tests.fakes.scheduler_inputs import CappedChunks, make_limits, make_submission

STAGE_SECONDS = 1.0  # of every step on every stage
NUM_CHUNKS = 40


def clockwork(num_stages: int, hop_seconds: float, *, acknowledged: bool) -> Clockwork:
    limits = make_limits(pipeline_depth=num_stages, max_model_len=512, num_blocks=256)
    scheduler = Scheduler(
        limits, planner=CappedChunks(8), needs_acknowledgement=lambda: acknowledged
    )
    return Clockwork(scheduler, limits, lambda *_: STAGE_SECONDS, hop_seconds=hop_seconds)


def seconds_of_a_long_prompt(num_stages: int, hop_seconds: float, **flag: Any) -> float:
    server = clockwork(num_stages, hop_seconds, **flag)
    server.submit(make_submission(0, 8 * NUM_CHUNKS, 1))
    server.run()
    return server.now


def shortest(num_stages: int, hop_seconds: float) -> float:
    """No stage ever waits for the head."""
    return (NUM_CHUNKS + num_stages - 1) * STAGE_SECONDS + num_stages * hop_seconds


@pytest.mark.parametrize("num_stages", [2, 4, 8])
def test_a_hop_of_a_tenth_of_a_stage_costs_nothing_where_a_chunk_runs_ahead(
    num_stages: int,
) -> None:
    best = shortest(num_stages, 0.1)
    assert seconds_of_a_long_prompt(num_stages, 0.1, acknowledged=False) == pytest.approx(best)
    assert seconds_of_a_long_prompt(num_stages, 0.1, acknowledged=True) > 1.06 * best


def test_free_hops_need_nobody_to_run_ahead() -> None:
    best = shortest(4, 0.0)
    assert seconds_of_a_long_prompt(4, 0.0, acknowledged=True) == pytest.approx(best)
    assert seconds_of_a_long_prompt(4, 0.0, acknowledged=False) == pytest.approx(best)


def test_a_running_stream_is_no_slower_for_chunks_that_may_run_ahead() -> None:
    ends = []
    for acknowledged in (False, True):
        server = clockwork(4, 0.1, acknowledged=acknowledged)
        server.submit(make_submission(0, 3, 30, ignore_eos=True))
        server.run(most_events=8)  # it decodes
        server.submit(make_submission(1, 8 * NUM_CHUNKS, 1))
        server.run()
        ends.append(server.ended[0].timings.finish_time)
    assert ends[0] <= ends[1]
