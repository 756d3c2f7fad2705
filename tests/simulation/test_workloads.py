"""Loads are what they say: rates, bursts, closed loops, shared prefixes."""

from __future__ import annotations

import random
import statistics
from itertools import pairwise

import pytest

from atom_lite.errors import ConfigError
from atom_lite.simulation.workloads import (
    ClosedLoop,
    Request,
    constant,
    draw_requests,
    log_normal,
    uniform,
    with_arrivals,
)

MANY = [Request(prompt_tokens=10)] * 4000


def gaps(rate: float, variation: float) -> list[float]:
    loop = with_arrivals(MANY, rate, 1, variation=variation)
    times = []
    while (at := loop.next_arrival_seconds) is not None:
        times += [request.arrival_seconds for request in loop.take_due(at)]
    return [later - earlier for earlier, later in pairwise(times)]


@pytest.mark.parametrize("variation", [0.0, 1.0, 3.0])
def test_arrivals_have_the_rate_and_the_variation_asked_for(variation: float) -> None:
    drawn = gaps(2.0, variation)
    mean = statistics.fmean(drawn)
    assert mean == pytest.approx(0.5, rel=0.1)
    assert statistics.pstdev(drawn) / mean == pytest.approx(variation, rel=0.1, abs=1e-9)


def test_a_closed_loop_never_has_more_than_its_concurrency_at_once() -> None:
    loop = ClosedLoop([Request(prompt_tokens=n) for n in (1, 2, 3, 4)], 2)
    assert [r.prompt_tokens for r in loop.take_due(0.0)] == [1, 2]
    assert loop.next_arrival_seconds is None
    loop.finished(7.0)
    assert loop.next_arrival_seconds == 7.0
    (third,) = loop.take_due(7.0)
    assert (third.prompt_tokens, third.arrival_seconds) == (3, 7.0)


def test_prompts_share_their_prefix_and_nothing_else() -> None:
    first, second, other = (
        Request(prompt_tokens=8, prefix=prefix, prefix_tokens=5).submission(sequence_id, 0.0)
        for sequence_id, prefix in ((1, 0), (2, 0), (3, 1))
    )
    assert first.prompt_token_ids[:5] == second.prompt_token_ids[:5]
    assert first.prompt_token_ids[5] != second.prompt_token_ids[5]
    assert first.prompt_token_ids[0] != other.prompt_token_ids[0]
    assert Request(prompt_tokens=8).submission(4, 0.0).prompt_token_ids[0] not in (
        first.prompt_token_ids
    )


def test_lengths_keep_to_their_ranges() -> None:
    rng = random.Random(0)
    drawn = [uniform(3, 9)(rng) for _ in range(200)]
    assert (min(drawn), max(drawn)) == (3, 9)
    tail = [log_normal(1000, 1.0, most=5000)(rng) for _ in range(2000)]
    assert max(tail) == 5000 and statistics.median(tail) == pytest.approx(1000, rel=0.1)


def test_drawn_requests_depend_on_the_seed_only() -> None:
    make = [draw_requests(5, seed, uniform(1, 10**6), constant(2)) for seed in (1, 1, 2)]
    assert make[0] == make[1] != make[2]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ClosedLoop([], 0), "concurrency is 0, must be at least 1"),
        (lambda: with_arrivals(MANY, 0.0, 1), "rate is 0.0, must be above 0"),
        (lambda: with_arrivals(MANY, 1.0, 1, variation=-1.0), "variation is -1.0"),
        (lambda: uniform(9, 3), "from 9 to 3"),
    ],
)
def test_loads_that_mean_nothing_are_refused(make: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()  # type: ignore[operator]
