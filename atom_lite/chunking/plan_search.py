"""Which target latency gets a prompt through the pipeline soonest.

Equal stages: the time is exactly `sum(t) + (S-1)*max(t)`, and the best cuts are found but for a
thousandth (`level_cuts`; within 0.5 % of the exact dynamic program over all cuts).

With K prefills about, the pipeline drains once for all of them, so a prompt counts a K-th of it:
`sum(t) + (S-1)/K*max(t)`. That holds as long as steps are alike from prompt to prompt, since at
most S are in flight and the short wait for the long; the planner sees to it.

Uneven stages: the target leans along the prompt, and every candidate is judged by the exact
flow-shop recursion; 2-10 % better than the best equal-latency plan where the last stage is heavy.
The best are then changed tile by tile (`neighbour_cuts`): of short prompts nothing better is left.
Fixed sizes are candidates too, so that no plan is predicted worse than a power of two.

Beside token streams, which wait for a step to end, the shortest steps are taken that make the
prompt at most `STREAMS_TOLERANCE` later: the optimum is flat, so steps half as long cost little.

Pure; runs in the head process, but not on the thread that feeds a stage. Measured on one core of a
Zen 3 (`benchmarks/planning_cost.py`): at most 5 ms for equal stages, 21 ms for uneven ones, less
than 0.7 % of the predicted time to first token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from atom_lite.chunking.cuts import Span, Target, chunk_times, cut
from atom_lite.chunking.flow_shop import makespan_seconds
from atom_lite.chunking.latency_model import LatencyModel
from atom_lite.chunking.level_cuts import best_level_cuts, cut_from_end
from atom_lite.chunking.neighbour_cuts import neighbours
from atom_lite.chunking.planner import PlanLimits

if TYPE_CHECKING:
    from collections.abc import Sequence

EQUAL_STAGES_RATIO = 1.03  # stages whose times differ by less count as equal
COARSE_TARGETS = 25
COARSE_RANGE = 2.2  # either side of the closed form's target
FINE_TARGETS = 8
TIGHTENINGS = 7
TIGHTEN_RANGE = 1.25
STREAMS_TOLERANCE = 0.03  # of the objective, given up for streams
SHORTENINGS = 8
SHORTEN_RANGE = 4.0
COARSE_LEANS = (-1.2, -0.6, 0.6, 1.2)
LEANING_FACTORS = (0.6, 0.8, 1.0, 1.25)
FINE_ROUNDS = 5
# What a search may cost, in evaluations of a chunk: plans of hundreds get fewer candidates.
EVALUATION_SECONDS = 1.4e-6
EVEN_EVALUATIONS = 3000.0
UNEVEN_EVALUATIONS = 18_000.0
LEAST_EVALUATIONS = 2000.0
NEIGHBOURS_SHARE = 0.5  # of those for uneven stages
CANDIDATE_OVERHEAD = 5.0  # of a candidate, whatever its number of chunks
FIRST_SHARE = 0.4  # of it for the level targets, and again for the leaning ones
MAX_CHUNKS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A prompt's cuts, a rule for when serving leaves them, and what they are predicted to take.

    Attributes:
        span: the tokens that are cut.
        sizes: chunk sizes in order.
        target: makes the same cuts or, where those are the best of all, much the same.
        peak_seconds: the longest step, on the stage that takes longest.
        objective_seconds: what was minimised.
        predicted_seconds: the prompt's way through the pipeline, alone.
    """

    span: Span
    sizes: tuple[int, ...]
    target: Target
    peak_seconds: float
    objective_seconds: float
    predicted_seconds: float

    def size_at(self, position: int) -> int | None:
        """The chunk that is planned to begin there; None where none is."""
        for start, size in zip(
            accumulate(self.sizes, initial=self.span.start), self.sizes, strict=False
        ):
            if start == position:
                return size
        return None


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


def plan(
    pipeline: Pipeline, span: Span, *, num_prefills: int = 1, beside_streams: bool = False
) -> Plan:
    """The best cuts of the span that the search finds, beside `num_prefills - 1` other prompts.

    With token streams beside them, cuts with shorter steps that are nearly as good.
    """
    search = _Search(pipeline, span, num_prefills)
    leans = num_prefills == 1 and not pipeline.is_even(span)
    if leans:
        search.over_targets()
        if len(search.best_sizes) > 1:
            search.over_leans()  # for filling and draining; one chunk cannot lean
        search.tighten()
        search.over_fixed_sizes()
    else:
        search.over_peaks()
    if pipeline.transfer_seconds_per_token > 0.0 or leans:
        search.over_last_chunks()
    if leans:
        search.over_neighbours()
    if beside_streams:
        search.shorten_steps()
    return Plan(
        span=span,
        sizes=tuple(search.best_sizes),
        target=search.best_target,
        peak_seconds=max(chunk_times(pipeline.slowest(span), span, search.best_sizes)),
        objective_seconds=search.best_objective,
        predicted_seconds=pipeline.makespan(span, search.best_sizes),
    )


def _typical_seconds(model: LatencyModel, span: Span) -> float:
    chunk = max(span.tokens // 8, 1)
    return model.chunk_seconds((span.start + span.end) / 2, chunk)


class _Search:
    """One prompt's search; keeps the best candidate seen."""

    def __init__(self, pipeline: Pipeline, span: Span, num_prefills: int) -> None:
        self._pipeline = pipeline
        self._span = span
        self._model = pipeline.slowest(span)
        # Beside other prompts only the pace of the slowest stage counts.
        self._is_even = num_prefills > 1 or pipeline.is_even(span)
        self._weight = (len(pipeline.models) - 1) / num_prefills
        self._evaluations_left = EVEN_EVALUATIONS
        self._kept_for_neighbours = 0.0
        if not self._is_even:
            # A hundredth of the prompt's time may be spent; the work of one stage is less than it.
            work = self._model.chunk_seconds(span.start, span.tokens)
            affordable = max(0.01 * work / EVALUATION_SECONDS, LEAST_EVALUATIONS)
            evaluations = min(affordable, UNEVEN_EVALUATIONS)
            self._kept_for_neighbours = max(NEIGHBOURS_SHARE * evaluations, LEAST_EVALUATIONS)
            self._evaluations_left = (1.0 - NEIGHBOURS_SHARE) * evaluations
        # An uneven candidate costs a chunk time and a recursion step on every stage.
        self._cost_per_chunk = 1.0 if self._is_even else 1.0 + len(pipeline.models) / 4.0
        self._judged: set[tuple[int, ...]] = set()
        self.best_objective = math.inf
        # The largest chunks, under the finite target that makes them: searches start from it.
        self.best_sizes = cut(self._model, span, Target(math.inf), pipeline.limits) or []
        peak = max(chunk_times(self._model, span, self.best_sizes))
        self.best_target = Target(peak * (1.0 + 1e-9))
        self._consider(self.best_target, max(MAX_CHUNKS, len(self.best_sizes)))

    def over_peaks(self) -> None:
        """For equal stages, or a shared pipeline: the best cuts there are."""
        cuts = best_level_cuts(
            self._model,
            self._span,
            self._pipeline.limits,
            peak_weight=self._weight,
            guess_seconds=self._closed_form()[0],
            most_evaluations=self._evaluations_left,
        )
        self._judge(cuts.sizes, Target(cuts.peak_seconds))

    def over_targets(self) -> None:
        """Coarse around the closed form's target, then fine around the best."""
        guess, num_chunks = self._closed_form()
        share = min(1.0, self._affordable(num_chunks) / (COARSE_TARGETS + FINE_TARGETS))
        coarse = max(5, int(COARSE_TARGETS * share))
        for index in range(coarse):
            self._consider(Target(guess * COARSE_RANGE ** (2.0 * index / (coarse - 1) - 1.0)))
        center = self.best_target.seconds
        ratio = COARSE_RANGE ** (2.0 / (coarse - 1))
        fine = max(4, int(FINE_TARGETS * share))
        for index in range(fine):
            self._consider(Target(center * ratio ** (2.0 * (index + 0.5) / fine - 1.0)))

    def over_leans(self) -> None:
        """A grid of leans around the best level target, then a shrinking pattern search."""
        center = self.best_target.seconds
        grid = [Target(center * f, lean) for f in LEANING_FACTORS for lean in COARSE_LEANS]
        affordable = max(self._affordable(len(self.best_sizes)), 1.0)
        for target in grid[:: math.ceil(len(grid) / affordable)]:
            self._consider(target)
        step_lean, step_factor = 0.2, 1.07
        for _ in range(FINE_ROUNDS):
            best = self.best_target
            center, lean = best.seconds, best.lean
            for changed in (
                (center, lean + step_lean),
                (center, lean - step_lean),
                (center * step_factor, lean),
                (center / step_factor, lean),
            ):
                self._consider(best._replace(seconds=changed[0], lean=changed[1]))
            if self.best_target == best:
                step_lean, step_factor = step_lean / 2.0, math.sqrt(step_factor)

    def tighten(self) -> None:
        """The lowest target for the best number of chunks and its neighbours: tails fill up."""
        start, best_count = self.best_target, len(self.best_sizes)
        for count in (best_count, best_count + 1, best_count - 1):
            self._tighten(start, count)

    def _tighten(self, start: Target, count: int) -> None:
        low, high = start.seconds / TIGHTEN_RANGE, start.seconds * TIGHTEN_RANGE
        for _ in range(TIGHTENINGS):
            middle = math.sqrt(low * high)
            if self._consider(start._replace(seconds=middle), at_most=count):
                high = middle
            else:
                low = middle

    def over_last_chunks(self) -> None:
        """Try a small last chunk, so that little is left for later stages or to hand over."""
        target = self.best_target
        most, align, floor = self._pipeline.limits
        size = floor
        while size < self._span.tokens // 2:
            last = size + self._span.tokens % align  # so that those before it are whole tiles
            if last <= most:
                self._consider(target._replace(last_tokens=last))
            size *= 2

    def over_neighbours(self) -> None:
        """Change the best cuts a little, for as long as that helps."""
        self._evaluations_left = self._kept_for_neighbours
        has_improved = True
        while has_improved:
            has_improved = False
            for sizes in neighbours(self.best_sizes, self._pipeline.limits):
                if self._evaluations_left <= 0.0:
                    return
                if self._judge(sizes, self.best_target):
                    has_improved = True
                    break

    def shorten_steps(self) -> None:
        """Exchange the best cuts for those with the shortest longest step that are nearly as good.

        Levelled from the end: no other cuts within a time are fewer (`level_cuts`).
        """
        bound = self.best_objective * (1.0 + STREAMS_TOLERANCE)
        high = max(chunk_times(self._model, self._span, self.best_sizes))
        low = high / SHORTEN_RANGE
        for _ in range(SHORTENINGS if len(self.best_sizes) < MAX_CHUNKS // SHORTENINGS else 1):
            middle = math.sqrt(low * high)
            sizes = cut_from_end(self._model, self._span, middle, self._pipeline.limits)
            objective = self._objective(sizes)
            peak = max(chunk_times(self._model, self._span, sizes))
            if peak >= high or objective > bound:
                low = middle
                continue
            self.best_sizes, self.best_objective = sizes, objective
            self.best_target = Target(peak)
            high = peak

    def over_fixed_sizes(self) -> None:
        """Powers of two, exactly: where stages differ much, level times are not what counts."""
        self._evaluations_left = max(self._evaluations_left, LEAST_EVALUATIONS)
        most, align, floor = self._pipeline.limits
        unbounded = self._model.chunk_seconds(self._span.end, most)
        size = most
        while size >= floor:
            tail = self._span.tokens % size
            last = tail if tail >= floor else 0
            self._consider(Target(unbounded, last_tokens=last, most_tokens=size))
            size = size // 2 // align * align

    def _affordable(self, num_chunks: float) -> float:
        """How many candidates of that many chunks one phase of the search may judge."""
        return FIRST_SHARE * self._evaluations_left / self._cost(num_chunks)

    def _cost(self, num_chunks: float) -> float:
        return (num_chunks + CANDIDATE_OVERHEAD) * self._cost_per_chunk

    def _closed_form(self) -> tuple[float, float]:
        """Target and number of chunks that are optimal without a prefix term."""
        span = self._span
        per_chunk, work = self._per_chunk_and_work()
        most_chunks = min(max(span.tokens / self._pipeline.limits.floor, 1.0), MAX_CHUNKS)
        chunks = most_chunks
        if per_chunk > 0.0:
            chunks = math.sqrt(self._weight * work / per_chunk)
        chunks = min(max(chunks, span.tokens / self._pipeline.limits.most, 1.0), most_chunks)
        return self._level_seconds(chunks), chunks

    def _level_seconds(self, num_chunks: float) -> float:
        """About how long each of so many chunks of one latency takes."""
        per_chunk, work = self._per_chunk_and_work()
        return max(per_chunk + work / num_chunks, 1e-12)

    def _per_chunk_and_work(self) -> tuple[float, float]:
        """What each chunk costs anyhow, and what all of them cost together besides."""
        span, model = self._span, self._model
        middle = (span.start + span.end) / 2.0
        per_chunk = model.constant_seconds + model.prefix_seconds_per_token * middle
        work = model.chunk_seconds(span.start, span.tokens) - model.chunk_seconds(span.start, 0)
        return per_chunk, work

    def _consider(self, target: Target, at_most: int = MAX_CHUNKS) -> bool:
        """Judge one target; whether it could be cut into that few chunks, and be afforded."""
        if self._evaluations_left <= 0.0:
            return False
        sizes = cut(self._model, self._span, target, self._pipeline.limits, at_most)
        if sizes is None:
            self._evaluations_left -= self._cost(at_most)
            return False
        self._judge(sizes, target)
        return True

    def _judge(self, sizes: list[int], target: Target) -> bool:
        """Keep the cuts if they are the best so far; whether they are."""
        self._evaluations_left -= self._cost(len(sizes))
        if tuple(sizes) in self._judged:  # of a short prompt, most targets make the same few cuts
            return False
        self._judged.add(tuple(sizes))
        objective = self._objective(sizes)
        if objective >= self.best_objective:
            return False
        self.best_objective = objective
        self.best_target = target
        self.best_sizes = sizes
        return True

    def _objective(self, sizes: Sequence[int]) -> float:
        transfer = self._pipeline.transfer_seconds_per_token * sizes[-1]
        times = chunk_times(self._model, self._span, sizes)
        if self._is_even:
            return sum(times) + self._weight * max(times) + transfer
        return self._pipeline.makespan(self._span, sizes) + transfer
