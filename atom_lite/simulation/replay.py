"""Replay: what a prompt's cuts take over P stages, from times measured on a machine with two cores.

    plans -> the probes they need -> each measured for real -> the exact flow-shop recursion
             (layers, L, x)          (`replay_machine`)         (`flow_shop`)

A stage's time for a chunk depends on its layers, the chunk's prefix L and its length x, so a probe
is measured once for all plans and all stages that have it: the layers of one model are alike, and
stages with equally many of them share their probes. What only the ends of a pipeline have is its
own: looking up the embedding is a copy of x rows and counts as nothing; the final norm and output
head are measured apart (`draw_seconds`) and count on the last stage for the last chunk only.
A link carries one chunk at a time, as a stage does, so it is one more stage of the recursion.

Nothing is interpolated: a plan is replayed from exactly its probes, or not at all. Pure: no torch,
no clock; runs offline.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple, TypeAlias

from atom_lite.chunking.flow_shop import finish_times, makespan_seconds
from atom_lite.simulation.chrome_trace import StageInterval

# Which of a probe's samples count, and as what: the median of all, or of a half or a resample.
Summary: TypeAlias = Callable[["Probe", Sequence[float]], float]


class Probe(NamedTuple):
    """One chunk on one kind of stage."""

    num_layers: int
    prefix_tokens: int
    new_tokens: int


class HopCost(NamedTuple):
    """How long hidden states travel between two stages, by the number of tokens."""

    latency_seconds: float = 0.0
    seconds_per_token: float = 0.0

    def seconds(self, tokens: int) -> float:
        """Of one chunk's hidden states."""
        return self.latency_seconds + self.seconds_per_token * tokens


@dataclass(slots=True)
class Measurements:
    """Everything that was measured on one machine.

    Attributes:
        samples: seconds of each probe, in the order of measuring.
        draw_seconds: final norm, output head and sampling of one row, once per prompt.
        hop: cost of a link.
    """

    samples: dict[Probe, list[float]] = field(default_factory=dict)
    draw_seconds: float = 0.0
    hop: HopCost = field(default_factory=HopCost)

    def add(self, probe: Probe, seconds: float) -> None:
        """Keep one time."""
        self.samples.setdefault(probe, []).append(seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """One prompt's way through the pipeline.

    Attributes:
        makespan_seconds: until the first output token is drawn.
        busy_seconds: per stage.
        bubble_seconds: per stage, idle time within the makespan.
        intervals: the timeline, for a Chrome trace.
    """

    makespan_seconds: float
    busy_seconds: tuple[float, ...]
    bubble_seconds: tuple[float, ...]
    intervals: tuple[StageInterval, ...]


def median_of(_probe: Probe, samples: Sequence[float]) -> float:
    """The summary that a result is made with."""
    return statistics.median(samples)


def prefixes(sizes: Sequence[int]) -> list[int]:
    """Tokens before each chunk of a prompt that is cut into `sizes`."""
    return list(accumulate(sizes[:-1], initial=0))


def probes_of(layers_per_stage: Sequence[int], sizes: Sequence[int]) -> list[Probe]:
    """All that replaying these cuts needs, in the order of the prompt."""
    return [
        Probe(layers, start, size)
        for layers in dict.fromkeys(layers_per_stage)
        for start, size in zip(prefixes(sizes), sizes, strict=True)
    ]


def replay(
    measurements: Measurements,
    layers_per_stage: Sequence[int],
    sizes: Sequence[int],
    summary: Summary = median_of,
) -> Replayed:
    """Send one prompt's chunks through the stages.

    Raises:
        KeyError: a probe has not been measured.
    """
    rows = _rows(measurements, layers_per_stage, sizes, summary)
    stage_rows, finished = rows[::2], finish_times(rows)[::2]
    makespan = finished[-1][-1]
    busy = tuple(sum(row) for row in stage_rows)
    return Replayed(
        makespan_seconds=makespan,
        busy_seconds=busy,
        bubble_seconds=tuple(makespan - seconds for seconds in busy),
        intervals=_intervals(stage_rows, finished, sizes),
    )


def replayed_seconds(
    measurements: Measurements,
    layers_per_stage: Sequence[int],
    sizes: Sequence[int],
    summary: Summary = median_of,
) -> float:
    """The makespan alone, for those who resample it many times.

    Raises:
        KeyError: a probe has not been measured.
    """
    return makespan_seconds(_rows(measurements, layers_per_stage, sizes, summary))


def _rows(
    measurements: Measurements,
    layers_per_stage: Sequence[int],
    sizes: Sequence[int],
    summary: Summary,
) -> list[list[float]]:
    """Seconds of each chunk on stage 0, its link, stage 1, ..., the last stage."""
    starts = prefixes(sizes)
    by_layers: dict[int, list[float]] = {}
    for layers in set(layers_per_stage):
        probes = [Probe(layers, start, size) for start, size in zip(starts, sizes, strict=True)]
        by_layers[layers] = [summary(probe, measurements.samples[probe]) for probe in probes]
    hops = [measurements.hop.seconds(size) for size in sizes]
    rows = []
    for layers in layers_per_stage:
        rows += [by_layers[layers], hops]
    last = [*rows[-2][:-1], rows[-2][-1] + measurements.draw_seconds]
    return [*rows[:-2], last]


def _intervals(
    stage_rows: Sequence[Sequence[float]],
    finished: Sequence[Sequence[float]],
    sizes: Sequence[int],
) -> tuple[StageInterval, ...]:
    starts = prefixes(sizes)
    return tuple(
        StageInterval(
            stage=stage,
            step_id=index,
            start_seconds=end - seconds,
            duration_seconds=seconds,
            label=f"prefill {sizes[index]}",
            sequence_ids=(0,),
            prefix_tokens=starts[index],
            num_tokens=sizes[index],
        )
        for stage, (row, ends) in enumerate(zip(stage_rows, finished, strict=True))
        for index, (seconds, end) in enumerate(zip(row, ends, strict=True))
    )
