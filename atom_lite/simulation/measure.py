"""What a simulated run amounts to: TTFT, gaps, throughput, and where the stages' time went.

Runs in simulations only; pure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from atom_lite.simulation.chrome_trace import StageInterval

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(slots=True, kw_only=True)
class SequenceRecord:
    """What became of one request; filled in while the run goes on.

    Attributes:
        sequence_id: in order of arrival.
        arrival_seconds: when it came.
        prompt_tokens: of its prompt.
        token_seconds: when each of its output tokens was known.
        cached_tokens: of its prompt, from the prefix cache.
        num_preemptions: how often it was computed anew.
        error: why it was refused; None where it was served.
    """

    sequence_id: int
    arrival_seconds: float
    prompt_tokens: int
    token_seconds: list[float] = field(default_factory=list)
    cached_tokens: int = 0
    num_preemptions: int = 0
    error: str | None = None

    @property
    def ttft_seconds(self) -> float:
        """From arrival to the first token; infinite where none came."""
        return self.token_seconds[0] - self.arrival_seconds if self.token_seconds else math.inf

    @property
    def gaps_seconds(self) -> list[float]:
        """ITL: one number for each token but the first."""
        return [later - earlier for earlier, later in pairwise(self.token_seconds)]

    @property
    def tpot_seconds(self) -> float | None:
        """TPOT: the mean gap of this request; None with fewer than two tokens."""
        gaps = self.gaps_seconds
        return sum(gaps) / len(gaps) if gaps else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One run: its requests, its timeline, and what the policy had to say."""

    num_stages: int
    sequences: tuple[SequenceRecord, ...]
    intervals: tuple[StageInterval, ...]
    notices: tuple[str, ...] = ()

    def chunk_sizes(self, sequence_id: int) -> list[int]:
        """Sizes of the steps that hold this sequence alone, in order: its plan as it was run."""
        return [
            box.num_tokens
            for box in self.intervals
            if box.stage == 0 and box.sequence_ids == (sequence_id,)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A distribution in five numbers; all 0 where nothing was counted."""

    count: int = 0
    mean: float = 0.0
    p50: float = 0.0
    p99: float = 0.0
    most: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """A run's figures.

    Attributes:
        ttft_seconds: over requests.
        itl_seconds: over gaps.
        tpot_seconds: over requests.
        duration_seconds: from the first microbatch's start to the last one's end.
        prompt_tokens_per_second: prompt tokens of served requests over the duration.
        output_tokens_per_second: likewise.
        num_steps: microbatches.
        busy_seconds: of each stage.
        bubble_seconds: of each stage, the rest of the duration: fill, drain and waits.
        num_refused: requests that could not be served.
    """

    ttft_seconds: Spread
    itl_seconds: Spread
    tpot_seconds: Spread
    duration_seconds: float
    prompt_tokens_per_second: float
    output_tokens_per_second: float
    num_steps: int
    busy_seconds: tuple[float, ...]
    bubble_seconds: tuple[float, ...]
    num_refused: int = 0

    @property
    def busy_share(self) -> float:
        """Of all stages' time, how much was used."""
        total = self.duration_seconds * len(self.busy_seconds)
        return sum(self.busy_seconds) / total if total > 0.0 else 0.0


def spread(values: Sequence[float]) -> Spread:
    """Mean, percentiles (interpolated) and maximum."""
    if not values:
        return Spread()
    ordered = sorted(values)
    return Spread(
        count=len(ordered),
        mean=math.fsum(ordered) / len(ordered),
        p50=_percentile(ordered, 0.50),
        p99=_percentile(ordered, 0.99),
        most=ordered[-1],
    )


def measure(run: RunRecord) -> Figures:
    """The figures of a run."""
    served = [record for record in run.sequences if record.error is None]
    start = min((box.start_seconds for box in run.intervals), default=0.0)
    end = max((box.end_seconds for box in run.intervals), default=0.0)
    duration = end - start
    busy = [0.0] * run.num_stages
    for box in run.intervals:
        busy[box.stage] += box.duration_seconds
    prompt_tokens = sum(record.prompt_tokens for record in served)
    output_tokens = sum(len(record.token_seconds) for record in served)
    tpots = [record.tpot_seconds for record in served]
    return Figures(
        ttft_seconds=spread([record.ttft_seconds for record in served]),
        itl_seconds=spread([gap for record in served for gap in record.gaps_seconds]),
        tpot_seconds=spread([tpot for tpot in tpots if tpot is not None]),
        duration_seconds=duration,
        prompt_tokens_per_second=prompt_tokens / duration if duration > 0.0 else 0.0,
        output_tokens_per_second=output_tokens / duration if duration > 0.0 else 0.0,
        num_steps=len(run.intervals) // run.num_stages,
        busy_seconds=tuple(busy),
        bubble_seconds=tuple(duration - seconds for seconds in busy),
        num_refused=len(run.sequences) - len(served),
    )


def _percentile(ordered: Sequence[float], share: float) -> float:
    position = share * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)
