"""Both definitions of fluidity."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from atom_lite.errors import ConfigError
from atom_lite.scheduler.fluidity import fluidity_docs, fluidity_paper

DEADLINES = {"first_seconds": 1.0, "next_seconds": 0.5}


@pytest.mark.parametrize(
    ("gaps", "docs", "paper"),
    [
        ([], 1.0, 1.0),
        ([1.0, 0.5, 0.5], 1.0, 1.0),
        ([0.5, 1.0, 0.5], 1.0, 1.0),  # the first token's slack pays for the second
        ([1.0, 0.75, 0.5], 2 / 3, 2 / 3),  # late by less than one deadline
        ([1.0, 2.25, 0.5], 2 / 3, 2 / 6),  # late by 1.75 s: four deadlines have passed
        ([1.0, 0.25, 1.0, 0.5, 0.5], 4 / 5, 4 / 5),  # slack of 0.25 is gone after the miss
        ([3.0], 0.0, 0.0),
    ],
)
def test_small_streams(gaps: list[float], docs: float, paper: float) -> None:
    assert fluidity_docs(gaps, **DEADLINES) == pytest.approx(docs)
    assert fluidity_paper(gaps, **DEADLINES) == pytest.approx(paper)


@given(st.lists(st.floats(0.0, 10.0), max_size=30))
def test_the_papers_is_never_above_the_documentations_and_both_are_shares(
    gaps: list[float],
) -> None:
    docs, paper = fluidity_docs(gaps, **DEADLINES), fluidity_paper(gaps, **DEADLINES)
    assert 0.0 <= paper <= docs <= 1.0
    assert (docs == 1.0) == (paper == 1.0)


def test_a_deadline_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"0\.0 s, must be above 0"):
        fluidity_docs([1.0], first_seconds=1.0, next_seconds=0.0)
