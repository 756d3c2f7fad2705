"""Fluidity: the share of tokens that come in time for a reader who may run ahead of slow ones.

Why: a percentile of gaps calls a stream bad for one long gap after many short ones, which nobody
feels, and a mean per request hides a stall. Fluidity carries the slack of early tokens. There are
two definitions in the field and they differ where tokens are late, so both are here, by name.
Pure functions over times; used by metrics, simulation and benchmarks.

    deadline of gap i:  D = Dp for the first token (TTFT), Dd for each after it
    on time:            gap <= D + slack; slack grows by D - gap

    docs    a late token counts once; slack is 0 after it
    paper   a late token counts once for each Dd that has passed since it was due; slack is 0

Source: Etalon (formerly Metron), its documentation and its code.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from atom_lite.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence


def fluidity_docs(
    gaps_seconds: Sequence[float], *, first_seconds: float, next_seconds: float
) -> float:
    """The share of tokens on time, each counted once; 1.0 where there is none.

    Args:
        gaps_seconds: TTFT, then the gap before each token after it.
        first_seconds: Dp, what the first token may take.
        next_seconds: Dd, what each after it may take, above 0.
    """
    missed = _missed_deadlines(gaps_seconds, first_seconds, next_seconds)
    return 1.0 - sum(count > 0 for count in missed) / len(missed) if missed else 1.0


def fluidity_paper(
    gaps_seconds: Sequence[float], *, first_seconds: float, next_seconds: float
) -> float:
    """The share of deadlines kept, a late token missing all that have passed; 1.0 without tokens.

    Arguments as for `fluidity_docs`.
    """
    missed = _missed_deadlines(gaps_seconds, first_seconds, next_seconds)
    total = sum(max(1, count) for count in missed)
    return 1.0 - sum(missed) / total if total else 1.0


def _missed_deadlines(
    gaps_seconds: Sequence[float], first_seconds: float, next_seconds: float
) -> list[int]:
    """Of each token: 0 where it is on time, else how many deadlines passed while it was late."""
    if not next_seconds > 0.0:
        raise ConfigError(f"the deadline of a token is {next_seconds} s, must be above 0")
    slack = 0.0
    missed = []
    for index, gap in enumerate(gaps_seconds):
        deadline = next_seconds if index else first_seconds
        if gap <= deadline + slack:
            slack += deadline - gap
            missed.append(0)
        else:
            missed.append(math.floor((gap - slack - deadline) / next_seconds) + 1)
            slack = 0.0
    return missed
