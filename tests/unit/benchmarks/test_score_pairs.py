import math

import pytest

from benchmarks.score_pairs import paired_score, relative_nll_change


def marks(text: str) -> list[bool]:
    return [letter == "1" for letter in text]


def test_only_items_that_differ_count() -> None:
    pairs = paired_score(marks("1100" * 25), marks("1010" * 25))
    assert (pairs.items, pairs.gained, pairs.lost) == (100, 25, 25)
    assert pairs.difference == 0
    assert pairs.sigma == pytest.approx(math.sqrt(50) / 100)
    assert pairs.is_within


def test_runs_that_agree_have_no_error_and_no_difference() -> None:
    pairs = paired_score(marks("1011"), marks("1011"))
    assert pairs.sigma == pairs.difference == 0
    assert pairs.is_within


def test_sigma_is_the_standard_error_of_the_mean_difference() -> None:
    first, second = marks("1110001101"), marks("1010011001")
    differences = [b - a for a, b in zip(first, second, strict=True)]
    mean = sum(differences) / 10
    spread = math.sqrt(sum((d - mean) ** 2 for d in differences) / 10)
    pairs = paired_score(first, second)
    assert pairs.sigma == pytest.approx(spread / math.sqrt(10))


@pytest.mark.parametrize(("lost", "within"), [(1, True), (3, True), (6, False), (60, False)])
def test_a_one_sided_loss_is_found(lost: int, within: bool) -> None:
    before = [True] * 500
    after = [False] * lost + [True] * (500 - lost)
    assert paired_score(before, after).is_within is within


def test_likelihoods_are_compared_over_the_windows_that_both_runs_have() -> None:
    assert relative_nll_change([100.0, 100.0, 900.0], [101.0, 101.0]) == pytest.approx(0.01)
    with pytest.raises(AssertionError):
        relative_nll_change([1.0], [])
