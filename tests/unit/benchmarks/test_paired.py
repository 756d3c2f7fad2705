"""Ratios of pairs ignore drift, and say how sure they are."""

import random

import pytest

from benchmarks.paired import Ratio, describe, fastest, interval, paired_ratio


def test_drift_that_hits_both_of_a_pair_cancels() -> None:
    drift = [1.0, 3.0, 0.5, 2.0, 7.0]
    ratio = paired_ratio([0.9 * d for d in drift], drift)
    assert ratio == Ratio(pytest.approx(0.9), pytest.approx(0.9), pytest.approx(0.9), 5)


def test_the_interval_holds_the_truth_about_nineteen_times_in_twenty() -> None:
    source = random.Random(5)
    hits = 0
    for _ in range(60):
        ours = [0.97 * source.gauss(1.0, 0.03) for _ in range(9)]
        theirs = [source.gauss(1.0, 0.03) for _ in range(9)]
        ratio = paired_ratio(ours, theirs)
        assert ratio.low is not None and ratio.high is not None
        hits += ratio.low <= 0.97 <= ratio.high
    assert 50 <= hits <= 60


def test_two_pairs_give_no_interval() -> None:
    assert paired_ratio([1.0, 2.0], [2.0, 2.0]) == Ratio(0.75, None, None, 2)


def test_the_fastest_has_the_least_median() -> None:
    assert fastest({"a": [1.0, 9.0, 9.0], "b": [2.0, 2.0, 50.0]}) == "b"


def test_ratios_are_shown_with_their_interval() -> None:
    assert describe(Ratio(0.9812, 0.97, 0.9934, 9)) == "0.981 [0.970, 0.993]"
    assert describe(Ratio(0.98, None, None, 1)) == "0.980"
    assert describe(None) == "-"
    assert interval([float(n) for n in range(101)]) == (2.0, 98.0)
