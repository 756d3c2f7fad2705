import pytest

from atom_lite.chunking.planner import ChunkRequest, Supply
from atom_lite.chunking.planners.linear import LinearPlanner
from benchmarks.chunk_plans import RecordingPlanner, ReplayPlanner


def request(prefix: int) -> ChunkRequest:
    return ChunkRequest(
        sequence_id=1, prefix_tokens=prefix, remaining_tokens=9000, budget_tokens=1024
    )


def test_a_replay_gives_the_recorded_sizes_and_reasons() -> None:
    recorder = RecordingPlanner(LinearPlanner(high_tokens=1024, low_tokens=128, stages=4))
    recorder.begin_step(Supply(1))
    decisions = [recorder.next_chunk(request(prefix)) for prefix in (0, 4000, 8000)]
    recorder.forget(1)
    assert len({decision.tokens for decision in decisions}) > 1
    replay = ReplayPlanner(recorder.given)
    replay.begin_step(Supply(3))
    assert [replay.next_chunk(request(prefix)) for prefix in (0, 4000, 8000)] == decisions


def test_a_replay_refuses_another_question_and_one_more() -> None:
    recorder = RecordingPlanner(LinearPlanner(high_tokens=1024, low_tokens=128, stages=4))
    recorder.next_chunk(request(0))
    with pytest.raises(RuntimeError, match="was not asked"):
        ReplayPlanner(recorder.given).next_chunk(request(64))
    with pytest.raises(RuntimeError, match="was not asked"):
        ReplayPlanner([]).next_chunk(request(0))
