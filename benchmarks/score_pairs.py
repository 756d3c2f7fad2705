"""Are two runs over the same items the same, or as good? Pure statistics.

Items are paired, so what counts is where the runs differ: with `gained` items that only the second
run got right and `lost` ones that only the first did, the difference of the scores is
(gained - lost) / n and its standard error sqrt(gained + lost - (gained - lost)^2 / n) / n.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_SIGMA = 2.0
MOST_NLL_CHANGE = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedScore:
    """The second run against the first."""

    items: int
    gained: int
    lost: int

    @property
    def difference(self) -> float:
        """Of the scores, second minus first."""
        return (self.gained - self.lost) / self.items

    @property
    def sigma(self) -> float:
        """Standard error of the difference; 0 where the runs agree on every item."""
        changed, net = self.gained + self.lost, self.gained - self.lost
        return math.sqrt(changed - net * net / self.items) / self.items

    @property
    def is_within(self) -> bool:
        """Whether the difference is at most two of its standard errors.

        One item lost and none gained is exactly one standard error; so is any one-sided change of
        a single item, whatever n is.
        """
        return abs(self.difference) <= MOST_SIGMA * self.sigma


def paired_score(first: Sequence[bool], second: Sequence[bool]) -> PairedScore:
    """Count where two runs differ."""
    pairs = list(zip(first, second, strict=True))
    return PairedScore(
        items=len(pairs),
        gained=sum(b and not a for a, b in pairs),
        lost=sum(a and not b for a, b in pairs),
    )


def relative_nll_change(first: Sequence[float], second: Sequence[float]) -> float:
    """Relative change of the total over the windows that both runs have (the first ones)."""
    common = min(len(first), len(second))
    assert common
    before, after = sum(first[:common]), sum(second[:common])
    return after / before - 1.0
