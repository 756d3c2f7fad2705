"""How long a row of chunks takes through a pipeline, exactly.

Stages run chunks in order, each chunk through each stage, buffers between stages unlimited:

    C[s][i] = max(C[s-1][i], C[s][i-1]) + t_s(i)

    stage 0   [ 1 ][ 2 ][ 3 ]
    stage 1        [ 1 ][ 2 ][ 3 ]
    stage 2             [ 1 ][ 2 ][ 3 ]      makespan = end of the last chunk on the last stage

With equal stages this is `sum(t) + (S-1)*max(t)` whatever the order (`equal_stages_seconds`), which
is what a planner may search on; uneven stages need the recursion. Pure; planner, simulation and
replay all judge plans by it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def finish_times(stage_seconds: Sequence[Sequence[float]]) -> list[list[float]]:
    """When each chunk leaves each stage; `stage_seconds[s][i]` is how long chunk i takes there."""
    finished: list[list[float]] = []
    arrivals: Sequence[float] = [0.0] * len(stage_seconds[0]) if stage_seconds else []
    for seconds in stage_seconds:
        assert len(seconds) == len(arrivals)
        clock = 0.0
        leaving = []
        for arrival, duration in zip(arrivals, seconds, strict=True):
            clock = (arrival if arrival > clock else clock) + duration
            leaving.append(clock)
        finished.append(leaving)
        arrivals = leaving
    return finished


def makespan_seconds(stage_seconds: Sequence[Sequence[float]]) -> float:
    """When the last chunk leaves the last stage; 0.0 without stages or chunks."""
    finished = finish_times(stage_seconds)
    return finished[-1][-1] if finished and finished[-1] else 0.0


def equal_stages_seconds(chunk_seconds: Sequence[float], num_stages: int) -> float:
    """The makespan where every stage takes the same time for a chunk, in closed form."""
    if not chunk_seconds:
        return 0.0
    return sum(chunk_seconds) + (num_stages - 1) * max(chunk_seconds)


def bubble_seconds(stage_seconds: Sequence[Sequence[float]]) -> list[float]:
    """Per stage, how long it idles between the start of the first chunk and the makespan."""
    total = makespan_seconds(stage_seconds)
    return [total - sum(seconds) for seconds in stage_seconds]
