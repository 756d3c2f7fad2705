"""The exact search for equal stages, against all cuts of prompts short enough to list them."""

from __future__ import annotations

import math
import random

import pytest

from atom_lite.chunking.cuts import Span, chunk_times
from atom_lite.chunking.latency_model import LatencyModel
from atom_lite.chunking.level_cuts import TOLERANCE, best_level_cuts, cut_from_end
from atom_lite.chunking.planner import plan_limits
from tests.fakes.exact_cuts import all_cuts
from tests.unit.chunking.samples import KIMI, SERVED

LIMITS = plan_limits(1024)


def times_of(model: LatencyModel, span: Span, sizes: list[int]) -> list[float]:
    return chunk_times(model, span, sizes)


def drawn_model(rng: random.Random, most_prefix_cost: float = 3.0) -> LatencyModel:
    b = 0.1
    return LatencyModel.from_milliseconds(
        a=rng.choice((0.0, b / rng.uniform(1e3, 1e5))),
        b=b,
        c=b * rng.choice((0.0, rng.uniform(0.0, 16.0), rng.uniform(16.0, 1000.0))),
        gamma=b * rng.choice((0.0, rng.uniform(0.0, 0.1), rng.uniform(0.1, most_prefix_cost))),
    )


def test_no_cuts_within_a_peak_have_a_smaller_sum() -> None:
    rng = random.Random(1)
    for _ in range(30):
        model, span = drawn_model(rng, most_prefix_cost=0.9), Span(0, rng.randrange(300, 900))
        listed = [times_of(model, span, sizes) for sizes in all_cuts(span.tokens, LIMITS)]
        peak = max(rng.choice(listed)) * (1.0 + 1e-9)  # whatever rounding does
        found = times_of(model, span, cut_from_end(model, span, peak, LIMITS))
        if max(found) <= peak:
            assert sum(found) <= min(sum(t) for t in listed if max(t) <= peak) * (1.0 + 1e-12)


@pytest.mark.parametrize("peak_weight", [1.0, 3.0, 7.0])
def test_the_best_of_all_cuts_is_found(peak_weight: float) -> None:
    rng = random.Random(2)
    for _ in range(30):
        model = drawn_model(rng)
        start = rng.choice((0, 64, 5000))
        span = Span(start, start + rng.randrange(100, 1000))
        listed = (times_of(model, span, sizes) for sizes in all_cuts(span.tokens, LIMITS))
        least = min(sum(times) + peak_weight * max(times) for times in listed)
        found = best_level_cuts(
            model,
            span,
            LIMITS,
            peak_weight=peak_weight,
            guess_seconds=model.chunk_seconds(start, rng.randrange(1, 1000)),
            most_evaluations=math.inf,
        )
        assert found.objective(peak_weight) <= least * 1.005
        assert sum(found.sizes) == span.tokens


def test_cuts_are_the_largest_that_keep_within_the_peak_from_the_end_on() -> None:
    span, peak = Span(0, 20_000), KIMI.chunk_seconds(0, 4000)
    sizes = cut_from_end(KIMI, span, peak, plan_limits(4096))
    begin = span.end
    for size in reversed(sizes[1:]):
        begin -= size
        assert KIMI.chunk_seconds(begin, size) <= peak < KIMI.chunk_seconds(begin - 64, size + 64)
    assert 128 <= sizes[0] <= sizes[1] + 128


@pytest.mark.parametrize("tokens", [1, 64, 127, 128, 255, 256, 257, 1000, 1025, 4096, 5001])
def test_cuts_keep_to_the_limits_whatever_the_peak(tokens: int) -> None:
    for peak in (0.0, 0.005, 0.01, 0.02, 0.05, math.inf):
        for start in (0, 37, 10_000):
            sizes = cut_from_end(SERVED, Span(start, start + tokens), peak, LIMITS)
            assert sum(sizes) == tokens
            assert max(sizes) <= LIMITS.most
            assert min(sizes) >= min(LIMITS.floor, tokens)
            assert all(size % LIMITS.align == 0 for size in sizes[:-1])


def test_a_search_that_may_cost_little_takes_the_best_that_it_has_seen() -> None:
    span, weight = Span(0, 100_000), 3.0

    def search(most_evaluations: float) -> float:
        found = best_level_cuts(
            KIMI,
            span,
            plan_limits(32768),
            peak_weight=weight,
            guess_seconds=0.2,
            most_evaluations=most_evaluations,
        )
        return found.objective(weight)

    none, few, enough = search(0.0), search(40.0), search(math.inf)
    assert enough * (1.0 - TOLERANCE) <= few <= none
    assert enough < none
