"""A follower whose own loop fails, not its forward pass: the head is told why all the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from atom_lite.engine import stage_process
from atom_lite.parallel.link import PipelineError

if TYPE_CHECKING:
    from atom_lite.engine.agreement import FollowerTerms
    from atom_lite.parallel.link import StageLink


class Failing:
    """A stage that loads and then cannot go on."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def load(self, terms: FollowerTerms) -> None:
        pass

    def run(self) -> int:
        raise self._error


class Told:
    """What the head hears."""

    def __init__(self) -> None:
        self.failures: list[str] = []

    def report_failure(self, message: str) -> None:
        self.failures.append(message)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    monkeypatch.setattr(stage_process, "_ignore_signals", lambda: None)
    return Told()


def run(error: Exception, told: Told) -> int:
    stage = cast("stage_process.Stage", Failing(error))
    terms = cast("FollowerTerms", None)
    return stage_process._load_and_run(stage, terms, cast("StageLink", told), "stage 1")


def test_a_plan_that_cannot_be_taken_ends_the_stage_with_its_reason(told: Told) -> None:
    assert run(RuntimeError("no memory for what is to come"), told) == 1
    assert told.failures == ["RuntimeError: no memory for what is to come"]


def test_a_lost_neighbour_is_no_failure_of_this_stage(told: Told) -> None:
    with pytest.raises(PipelineError):
        run(PipelineError("stage 0 is gone"), told)
    assert told.failures == []
