"""A replay study out of its JSON document, for tables and plots. Pure."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.chunk_arms import FIXED
from benchmarks.replay_record import settings_from, study_from

if TYPE_CHECKING:
    from atom_lite.simulation.chrome_trace import StageInterval
    from atom_lite.simulation.replay import Replayed
    from benchmarks.replay_study import Point

MAKESPAN = "makespan"


class Prediction(NamedTuple):
    """One kind of chunk, as the model says and as it was."""

    num_layers: int
    prefix_tokens: int
    new_tokens: int
    predicted: float
    measured: float


class ReplayView:
    """Reads one document."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.study = study_from(document["replay"], settings_from(document))

    def shown_points(self) -> list[Point]:
        """The longest prompt of each pipeline."""
        longest = max(tokens for _, tokens in self.study.cuts)
        return [point for point in self.study.cuts if point[1] == longest]

    def sizes(self, point: Point, arm: str) -> tuple[int, ...]:
        """Chunks of an arm."""
        return self.study.cuts[point][arm]

    def best_fixed(self, point: Point) -> str:
        """The fixed arm with the least makespan."""
        arms = self.study.arms_like(point, FIXED)
        return min(arms, key=lambda arm: self.replayed(point, arm).makespan_seconds)

    def replayed(self, point: Point, arm: str) -> Replayed:
        """An arm's way through the pipeline."""
        return self.study.replayed(point, arm)

    def timelines(self) -> dict[str, tuple[StageInterval, ...]]:
        """Makespan and the best fixed chunk of each shown point, by name."""
        return {
            f"PP{point[0]} {point[1]} tokens, {arm}": self.replayed(point, arm).intervals
            for point in self.shown_points()
            for arm in (MAKESPAN, self.best_fixed(point))
        }

    def predictions(self) -> list[Prediction]:
        """Each measured chunk beside what its stage's model says."""
        models = {
            layers: model
            for stages, split in self.study.settings.splits.items()
            for layers, model in zip(split, self.study.models[stages], strict=True)
        }
        return [
            Prediction(
                *probe,
                models[probe.num_layers].chunk_seconds(probe.prefix_tokens, probe.new_tokens),
                statistics.median(samples),
            )
            for probe, samples in self.study.measurements.samples.items()
        ]
