"""When tokens are due."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import pytest
from hypothesis import given

from atom_lite.config_scheduling import Objectives
from atom_lite.scheduler.deadlines import Deadline
from atom_lite.scheduler.fluidity import fluidity_docs

BOTH = Objectives(ttft_seconds=2.0, tbt_seconds=0.5)


def test_early_tokens_leave_their_slack_and_a_late_one_starts_anew() -> None:
    deadline = Deadline(BOTH, arrival_seconds=10.0)
    assert deadline.due_seconds == 12.0
    deadline.token(11.0)
    assert deadline.due_seconds == 12.5
    deadline.token(11.5)
    assert deadline.due_seconds == 13.0
    deadline.token(14.0)
    assert (deadline.due_seconds, deadline.num_late) == (14.5, 1)


@pytest.mark.parametrize("ttft", [None, 2.0])
def test_without_an_objective_nothing_is_due(ttft: float | None) -> None:
    deadline = Deadline(Objectives(ttft_seconds=ttft), arrival_seconds=0.0)
    deadline.token(5.0)
    assert deadline.due_seconds == math.inf


def test_a_gap_objective_alone_counts_from_the_first_token() -> None:
    deadline = Deadline(Objectives(tbt_seconds=0.5), arrival_seconds=0.0)
    assert deadline.due_seconds == math.inf
    deadline.token(9.0)
    assert deadline.due_seconds == 9.5


def test_a_requests_own_objectives_go_before_the_servers() -> None:
    own = Objectives(tbt_seconds=0.1)
    assert own.over(BOTH) == Objectives(ttft_seconds=2.0, tbt_seconds=0.1)
    assert Objectives().over(BOTH) == BOTH


@given(st.lists(st.integers(0, 64), min_size=1, max_size=40))
def test_late_tokens_are_those_that_fluidity_counts(gaps_in_32nds: list[int]) -> None:
    """Gaps are multiples of 1/32 s, so that sums are exact."""
    gaps = [gap / 32 for gap in gaps_in_32nds]
    deadline = Deadline(Objectives(ttft_seconds=1.0, tbt_seconds=0.5), arrival_seconds=0.0)
    now = 0.0
    for gap in gaps:
        now += gap
        deadline.token(now)
    share = fluidity_docs(gaps, first_seconds=1.0, next_seconds=0.5)
    assert share == 1.0 - deadline.num_late / len(gaps)
