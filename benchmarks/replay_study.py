"""PP2, PP4 and PP8 by replay: which cuts are measured, how often, and who wins.

    round 1   the fixed arms and the server's startup sweep; the server's fit makes models of the
              chunks that are within its budget; then the cuts that the other arms make with those
              models (of ATOM's hindsight grid, the ones that the models rank first)
    round 2.. the arms that came within a few percent of the best, until rounds or time are used up

The best fixed chunk and the best of ATOM's grid are picked on one half of the samples and judged on
the other, both ways round, and the interval comes from resampling every probe's samples.
"""

from __future__ import annotations

import random
import statistics
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from atom_lite.chunking.fit_robust import PrefillRow, fit_prefill
from atom_lite.chunking.latency_model import LatencyModel, attention_area
from atom_lite.chunking.refusal import FitRefused
from atom_lite.chunking.sweep import prefix_sweep_shapes
from atom_lite.engine.limits import least_chunk_tokens
from atom_lite.simulation.replay import (
    Measurements,
    Probe,
    Replayed,
    Summary,
    median_of,
    probes_of,
    replay,
    replayed_seconds,
)
from benchmarks.chunk_arms import (
    Situation,
    cut_prompt,
    distinct_fixed_arms,
    is_fixed,
    planner_of,
    predicted_seconds,
    tuned_arms,
)
from benchmarks.paired import Ratio, interval
from benchmarks.stream_client import LoadError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from atom_lite.simulation.replay_process import ChunkSeconds

CONTENDER_RATIO = 1.04
TUNED_TRIED = 2  # of ATOM's grid, for each pipeline and length
RESAMPLES = 200

Point = tuple[int, int]  # stages, prompt tokens


class Meter(Protocol):
    """What measures probes: `ReplayMachine`."""

    def measure(
        self,
        probes: Iterable[Probe],
        record: Callable[[Probe, ChunkSeconds], None],
        *,
        seed: int,
    ) -> None:
        """Measure each probe once."""
        ...


class StudySettings(NamedTuple):
    """What is studied.

    Attributes:
        splits: number of stages -> layers of each.
        lengths: prompt tokens.
        arms: names; ATOM's grid is added where `atom` is among them.
        budget_tokens: of makespan's chunks.
        rounds: most of them.
        seconds: time after which no further round is started.
        clock: `wall`, or `cpu` for the thread's own time on a machine that others use too.
        seed: of the order of measuring.
    """

    splits: dict[int, tuple[int, ...]]
    lengths: tuple[int, ...]
    arms: tuple[str, ...]
    budget_tokens: int
    rounds: int
    seconds: float
    clock: str
    seed: int


@dataclass(slots=True)
class Study:
    """What was cut and measured so far.

    Attributes:
        settings: of the study.
        measurements: all samples.
        cuts: (stages, length) -> arm -> chunk sizes.
        models: number of stages -> fitted models.
        rounds_done: complete ones.
    """

    settings: StudySettings
    measurements: Measurements
    cuts: dict[Point, dict[str, tuple[int, ...]]] = field(default_factory=dict)
    models: dict[int, tuple[LatencyModel, ...]] = field(default_factory=dict)
    rounds_done: int = 0

    def replayed(self, point: Point, arm: str) -> Replayed:
        """One arm's prompt through the pipeline."""
        split = self.settings.splits[point[0]]
        return replay(self.measurements, split, self.cuts[point][arm])

    def makespans(self, point: Point, arms: Iterable[str], summary: Summary) -> dict[str, float]:
        """Seconds by arm."""
        split = self.settings.splits[point[0]]
        return {
            arm: replayed_seconds(self.measurements, split, self.cuts[point][arm], summary)
            for arm in arms
        }

    def probes(self, point: Point, arms: Iterable[str]) -> set[Probe]:
        """What these arms need."""
        split = self.settings.splits[point[0]]
        return {probe for arm in arms for probe in probes_of(split, self.cuts[point][arm])}

    def arms_like(self, point: Point, prefix: str) -> list[str]:
        """The arms of one family that were cut at a point."""
        return [arm for arm in self.cuts[point] if arm.startswith(prefix)]

    def num_samples(self, point: Point, arm: str) -> int:
        """The fewest times that any of the arm's probes was measured."""
        samples = self.measurements.samples
        return min(len(samples[probe]) for probe in self.probes(point, [arm]))


def run_study(meter: Meter, study: Study, on_round: Callable[[Study], None]) -> None:
    """Measure rounds; `on_round` may save after each.

    Raises:
        LoadError: no model fits what was measured, or the study is of other points.
    """
    deadline = time.monotonic() + study.settings.seconds
    points = [(s, n) for s in study.settings.splits for n in study.settings.lengths]
    if study.rounds_done > 0 and set(study.cuts) != set(points):
        raise LoadError("--resume: the document's replay has other prompt lengths or stages")
    if study.rounds_done == 0:
        for point in points:  # every prompt once as one chunk at most
            study.cuts[point] = distinct_fixed_arms(study.settings.arms, point[1])
        _measure(meter, study, {p: list(study.cuts[p]) for p in points}, fresh_only=True)
        fresh = calibration_probes(study.settings) - study.measurements.samples.keys()
        _record(meter, study, fresh)
        _fit(study)
        _cut_fitted(study, points)
        _measure(meter, study, {p: list(study.cuts[p]) for p in points}, fresh_only=True)
        study.rounds_done = 1
        on_round(study)
    while study.rounds_done < study.settings.rounds and time.monotonic() < deadline:
        _measure(meter, study, {p: contenders(study, p) for p in points}, fresh_only=False)
        study.rounds_done += 1
        on_round(study)


def contenders(study: Study, point: Point) -> list[str]:
    """Arms that may still be the best, and makespan, which all are compared with."""
    times = study.makespans(point, study.cuts[point], median_of)
    limit = min(times.values()) * CONTENDER_RATIO
    return [arm for arm, seconds in times.items() if seconds <= limit or arm == "makespan"]


def ratio_to_best(study: Study, point: Point, prefix: str) -> Ratio | None:
    """Makespan's time over that of the best arm of a family, with an interval.

    With one sample of a probe there are no halves: the plain ratio then, which favours the family
    (its best is picked by the same noise that it is judged by).
    """
    family = study.arms_like(point, prefix)
    if not family or "makespan" not in study.cuts[point]:
        return None
    times = study.makespans(point, family, median_of)
    best = min(times, key=times.__getitem__)
    rounds = min(study.num_samples(point, arm) for arm in (best, "makespan"))
    if rounds < 2:
        ours = study.makespans(point, ["makespan"], median_of)["makespan"]
        return Ratio(ours / times[best], None, None, 1)
    close = [arm for arm in family if study.num_samples(point, arm) >= 2]
    source = random.Random(study.settings.seed)
    resampled = [
        _judged(study, point, close, (_resampling(source), _resampling(source)))
        for _ in range(RESAMPLES)
    ]
    low, high = interval(resampled)
    return Ratio(_judged(study, point, close, (median_of, median_of)), low, high, rounds)


def _judged(
    study: Study, point: Point, family: Sequence[str], summaries: tuple[Summary, Summary]
) -> float:
    """Picked on one half of the samples and judged on the other; the mean of both ways round."""
    halves = [_half(summary, which) for which, summary in enumerate(summaries)]
    times = [study.makespans(point, [*family, "makespan"], half) for half in halves]
    ratios = []
    for picking, judging in (times, times[::-1]):
        best = min(family, key=picking.__getitem__)
        ratios.append(judging["makespan"] / judging[best])
    return statistics.fmean(ratios)


def _half(inner: Summary, which: int) -> Summary:
    return lambda probe, samples: inner(probe, samples[which::2])


def _resampling(source: random.Random) -> Summary:
    """One bootstrap draw: every probe keeps its drawn value wherever it occurs."""
    drawn: dict[Probe, float] = {}

    def value(probe: Probe, samples: Sequence[float]) -> float:
        if probe not in drawn:
            drawn[probe] = statistics.median(source.choices(samples, k=len(samples)))
        return drawn[probe]

    return value


def _measure(
    meter: Meter,
    study: Study,
    arms: dict[Point, list[str]],
    *,
    fresh_only: bool,
) -> None:
    probes = {probe for point, names in arms.items() for probe in study.probes(point, names)}
    if fresh_only:
        probes = {probe for probe in probes if probe not in study.measurements.samples}
    _record(meter, study, probes)


def _record(meter: Meter, study: Study, probes: Iterable[Probe]) -> None:
    uses_cpu_time = study.settings.clock == "cpu"

    def record(probe: Probe, taken: ChunkSeconds) -> None:
        study.measurements.add(probe, taken.cpu_seconds if uses_cpu_time else taken.seconds)

    meter.measure(probes, record, seed=study.settings.seed + study.rounds_done)


def calibration_probes(settings: StudySettings) -> set[Probe]:
    """What a server times before it has a model: its startup sweep, at every kind of stage.

    Small chunks are what a fixed arm never shows, and what a fit of the constant hangs on.
    """
    longest = max(settings.lengths)
    probes = set()
    for stages, split in settings.splits.items():
        floor = least_chunk_tokens(stages, on_cpu=True)
        for prefix, new in prefix_sweep_shapes(floor, settings.budget_tokens, longest):
            probes |= {Probe(layers, prefix, new) for layers in split}
    return probes


def _fit(study: Study) -> None:
    """The server's fit, for each kind of stage, to chunks that a server would have seen."""
    rows: dict[int, list[PrefillRow]] = {}
    for probe, samples in study.measurements.samples.items():
        layers, prefix, new = probe
        if new > study.settings.budget_tokens:
            continue
        area = attention_area(prefix, new)
        seconds = statistics.median(samples)
        rows.setdefault(layers, []).append(PrefillRow(prefix, new, area, 0, 0, seconds))
    try:
        fitted = {layers: fit_prefill(kind, None).model for layers, kind in rows.items()}
    except FitRefused as refused:
        raise LoadError(f"no latency model fits the measured chunks: {refused.message}") from None
    for stages, split in study.settings.splits.items():
        study.models[stages] = tuple(fitted[layers] for layers in split)


def _cut_fitted(study: Study, points: Iterable[Point]) -> None:
    settings = study.settings
    wanted = [arm for arm in settings.arms if not is_fixed(arm)]
    for point in points:
        situation = Situation(study.models[point[0]], max(settings.lengths), settings.budget_tokens)
        arms = [*wanted, *(_promising(situation, point[1]) if "atom" in wanted else ())]
        for arm in arms:
            study.cuts[point][arm] = cut_prompt(planner_of(arm, situation), point[1])


def _promising(situation: Situation, tokens: int) -> list[str]:
    """Of ATOM's grid, the different cuts that the models rank first."""
    cuts = {arm: cut_prompt(planner_of(arm, situation), tokens) for arm in tuned_arms()}
    different = {sizes: arm for arm, sizes in reversed(cuts.items())}
    ranked = sorted(different, key=lambda sizes: predicted_seconds(situation, sizes))
    return [different[sizes] for sizes in ranked[:TUNED_TRIED]]
