"""Spinning is bounded unless the operator says how threads wait."""

from __future__ import annotations

import pytest

from atom_lite.parallel.spinning import SPIN_ROUNDS, bound_spinning


def test_spinning_is_bounded_by_default() -> None:
    environment = {"PATH": "/bin"}
    bound_spinning(environment)
    assert environment == {"PATH": "/bin", "GOMP_SPINCOUNT": str(SPIN_ROUNDS)}


@pytest.mark.parametrize("name", ["GOMP_SPINCOUNT", "OMP_WAIT_POLICY"])
def test_the_operator_s_choice_stays(name: str) -> None:
    environment = {name: "what they say"}
    bound_spinning(environment)
    assert environment == {name: "what they say"}
