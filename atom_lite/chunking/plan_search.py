"""Which target latency gets a prompt through the pipeline soonest.

Equal stages: the time is exactly `sum(t) + (S-1)*max(t)`, so a one-dimensional search over the
target is all (within 0.5 % of the exact dynamic program over all cuts). With other prefills about,
the pipeline is never drained, so the peak hardly matters: `sum + w*max` with a small w. (S-1)/K is
not small enough: at four prefills an always-on S-1 costs 10-30 %.

Uneven stages: the target leans along the prompt, and every candidate is judged by the exact
flow-shop recursion; 2-10 % better than the best equal-latency plan.

Pure; runs in the head process, but not on the thread that feeds a stage. Cost (Zen 3, one core):
see the tests' bounds; at most 10 ms for equal stages, 50 ms for uneven ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atom_lite.chunking.cuts import Span, Target, chunk_times, cut
from atom_lite.chunking.flow_shop import makespan_seconds
from atom_lite.chunking.latency_model import LatencyModel
from atom_lite.chunking.planner import PlanLimits

if TYPE_CHECKING:
    from collections.abc import Sequence

SHARED_PEAK_WEIGHT = 0.05
EQUAL_STAGES_RATIO = 1.03  # stages whose times differ by less count as equal
COARSE_TARGETS = 25
COARSE_RANGE = 2.2  # either side of the closed form's target
FINE_TARGETS = 8
TIGHTENINGS = 7
TIGHTEN_RANGE = 1.25
COARSE_LEANS = (-1.2, -0.8, -0.4, 0.0, 0.4, 0.8, 1.2)
FINE_ROUNDS = 5
CHUNK_EVALUATIONS = 1400  # of either half of a search; hundreds of chunks get fewer tries
MAX_CHUNKS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A prompt's cuts, how they are made, and what they are predicted to take.

    Attributes:
        span: the tokens that are cut.
        sizes: chunk sizes in order.
        target: the rule that made them.
        objective_seconds: what was minimised.
        predicted_seconds: the prompt's way through the pipeline, alone.
    """

    span: Span
    sizes: tuple[int, ...]
    target: Target
    objective_seconds: float
    predicted_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """What a plan is made for: the stages' models, the size limits and the KV hand-over.

    Attributes:
        models: one per stage.
        limits: sizes that chunks keep to.
        transfer_seconds_per_token: of KV handed to a decode instance after the last chunk; 0 where
            nothing is handed over. It makes the last chunk small.
    """

    models: tuple[LatencyModel, ...]
    limits: PlanLimits
    transfer_seconds_per_token: float = 0.0

    def slowest(self, span: Span) -> LatencyModel:
        """The stage that takes longest over the span (one typical chunk of it)."""
        return max(self.models, key=lambda model: _typical_seconds(model, span))

    def is_even(self, span: Span) -> bool:
        """Whether stages differ too little for a lean to pay."""
        times = [_typical_seconds(model, span) for model in self.models]
        return max(times) <= EQUAL_STAGES_RATIO * min(times)

    def makespan(self, span: Span, sizes: Sequence[int]) -> float:
        """Seconds until the last chunk leaves the last stage, by the exact recursion."""
        return makespan_seconds([chunk_times(model, span, sizes) for model in self.models])


def plan(pipeline: Pipeline, span: Span, *, is_sole: bool = True) -> Plan:
    """The best cuts of the span that the search finds."""
    search = _Search(pipeline, span, is_sole)
    search.over_targets()
    if not pipeline.is_even(span) and is_sole:
        search.over_leans()
    search.tighten()
    if pipeline.transfer_seconds_per_token > 0.0:
        search.over_last_chunks()
    return Plan(
        span=span,
        sizes=tuple(search.best_sizes),
        target=search.best_target,
        objective_seconds=search.best_objective,
        predicted_seconds=pipeline.makespan(span, search.best_sizes),
    )


def _typical_seconds(model: LatencyModel, span: Span) -> float:
    chunk = max(span.tokens // 8, 1)
    return model.chunk_seconds((span.start + span.end) / 2, chunk)


class _Search:
    """One prompt's search; keeps the best candidate seen."""

    def __init__(self, pipeline: Pipeline, span: Span, is_sole: bool) -> None:
        self._pipeline = pipeline
        self._span = span
        self._is_sole = is_sole
        self._model = pipeline.slowest(span)
        self._is_even = pipeline.is_even(span)
        weight = len(pipeline.models) - 1 if is_sole else SHARED_PEAK_WEIGHT
        self._weight = float(weight)
        self.best_objective = math.inf
        self.best_target = Target(math.inf)
        self.best_sizes: list[int] = []
        self._consider(Target(math.inf))

    def over_targets(self) -> None:
        """Coarse around the closed form's target, then fine around the best."""
        guess, num_chunks = self._closed_form()
        share = min(1.0, CHUNK_EVALUATIONS / (num_chunks * (COARSE_TARGETS + FINE_TARGETS)))
        coarse = max(5, int(COARSE_TARGETS * share))
        for index in range(coarse):
            self._consider(Target(guess * COARSE_RANGE ** (2.0 * index / (coarse - 1) - 1.0)))
        if math.isinf(self.best_target.seconds):
            return
        center = self.best_target.seconds
        ratio = COARSE_RANGE ** (2.0 / (coarse - 1))
        fine = max(4, int(FINE_TARGETS * share))
        for index in range(fine):
            self._consider(Target(center * ratio ** (2.0 * (index + 0.5) / fine - 1.0)))

    def over_leans(self) -> None:
        """A grid of leans around the best level target, then a shrinking pattern search."""
        center = self.best_target.seconds
        if math.isinf(center):
            center = self._closed_form()[0]
        for lean in COARSE_LEANS:
            for factor in (0.7, 0.85, 1.0, 1.2):
                self._consider(Target(center * factor, lean))
        step_lean, step_factor = 0.2, 1.07
        for _ in range(FINE_ROUNDS):
            center, lean, _ = self.best_target
            for target in (
                Target(center, lean + step_lean),
                Target(center, lean - step_lean),
                Target(center * step_factor, lean),
                Target(center / step_factor, lean),
            ):
                self._consider(target)
            if self.best_target[:2] == (center, lean):
                step_lean, step_factor = step_lean / 2.0, math.sqrt(step_factor)

    def tighten(self) -> None:
        """The lowest target for the best number of chunks and its neighbours: tails fill up."""
        if math.isinf(self.best_target.seconds):
            return
        start, best_count = self.best_target, len(self.best_sizes)
        affordable = CHUNK_EVALUATIONS // best_count
        counts = (best_count, best_count + 1, best_count - 1)
        for count in counts[: max(affordable // TIGHTENINGS, 1)]:
            low, high = start.seconds / TIGHTEN_RANGE, start.seconds * TIGHTEN_RANGE
            for _ in range(min(TIGHTENINGS, affordable)):
                middle = math.sqrt(low * high)
                if self._consider(start._replace(seconds=middle), at_most=count):
                    high = middle
                else:
                    low = middle

    def over_last_chunks(self) -> None:
        """Try a small last chunk, so that little KV is left to hand over when it is done."""
        target = self.best_target
        size = self._pipeline.limits.floor
        while size < self._span.tokens // 2:
            self._consider(target._replace(last_tokens=size))
            size *= 2

    def _closed_form(self) -> tuple[float, float]:
        """Target and number of chunks that are optimal without a prefix term."""
        span, model = self._span, self._model
        middle = (span.start + span.end) / 2.0
        per_chunk = model.constant_seconds + model.prefix_seconds_per_token * middle
        work = model.chunk_seconds(span.start, span.tokens) - model.chunk_seconds(span.start, 0)
        most_chunks = min(max(span.tokens / self._pipeline.limits.floor, 1.0), MAX_CHUNKS)
        chunks = most_chunks
        if per_chunk > 0.0:
            chunks = math.sqrt(self._weight * work / per_chunk)
        chunks = min(max(chunks, span.tokens / self._pipeline.limits.most, 1.0), most_chunks)
        return max(per_chunk + work / chunks, 1e-12), chunks

    def _consider(self, target: Target, at_most: int = MAX_CHUNKS) -> bool:
        """Judge one target; whether it could be cut into that few chunks."""
        sizes = cut(self._model, self._span, target, self._pipeline.limits, at_most)
        if sizes is None:
            if self.best_sizes:
                return False
            sizes = cut(self._model, self._span, target, self._pipeline.limits) or []
        objective = self._objective(sizes)
        if objective < self.best_objective:
            self.best_objective = objective
            self.best_target = target
            self.best_sizes = sizes
        return True

    def _objective(self, sizes: Sequence[int]) -> float:
        transfer = self._pipeline.transfer_seconds_per_token * sizes[-1]
        times = chunk_times(self._model, self._span, sizes)
        if self._is_even:
            return sum(times) + self._weight * max(times) + transfer
        drain = self._pipeline.makespan(self._span, sizes) - sum(times)
        share = 1.0 if self._is_sole else self._weight / max(len(self._pipeline.models) - 1, 1)
        return sum(times) + share * drain + transfer
