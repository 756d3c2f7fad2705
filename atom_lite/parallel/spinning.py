"""How long OpenMP's threads wait for each other by spinning, before they sleep.

GNU OpenMP spins for milliseconds by default. That is fine alone on the machine: the operations of a
step follow each other within microseconds. But as soon as anything else wants a core, a thread that
spins keeps it from the very thread that it waits for: with one other busy process on two Zen 3
cores a decode step of SmolLM2-135M took 1470 ms in the median, at 10000 rounds 38 (alone 26 both).
At 1000 rounds threads fall asleep between operations, and the step takes 44 ms alone.

The runtime reads this when it is loaded, so it is set before torch is imported; child processes
inherit it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import MutableMapping

SPIN_ROUNDS = 10_000  # some tenths of a millisecond
_CHOSEN_BY_OPERATOR = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


def bound_spinning(environment: MutableMapping[str, str]) -> None:
    """Bound it in `environment`, unless the operator has chosen something there."""
    if not any(name in environment for name in _CHOSEN_BY_OPERATOR):
        environment["GOMP_SPINCOUNT"] = str(SPIN_ROUNDS)
