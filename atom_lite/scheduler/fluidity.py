"""Fluidity: the share of tokens that come in time for a reader who may run ahead of slow ones.

Why: a percentile of gaps calls a stream bad for one long gap after many short ones, which nobody
feels, and a mean per request hides a stall. Fluidity carries the slack of early tokens. There are
two definitions in the field and they differ where tokens are late, so both are here, by name.
Pure functions over times; used by simulation and benchmarks. Metrics count token by token
(`observability/fluidity.py`).

    deadline of gap i:  D = Dp for the first token (TTFT), Dd for each after it
    on time:            gap <= D + slack; slack grows by D - gap

    docs    a late token counts once; slack is 0 after it
    paper   a late token counts once for each Dd that has passed since it was due; slack is 0

Source: Etalon (formerly Metron), its documentation and its code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from atom_lite.observability.fluidity import FluidityCount

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
    return _counted(gaps_seconds, first_seconds, next_seconds).docs


def fluidity_paper(
    gaps_seconds: Sequence[float], *, first_seconds: float, next_seconds: float
) -> float:
    """The share of deadlines kept, a late token missing all that have passed; 1.0 without tokens.

    Arguments as for `fluidity_docs`.
    """
    return _counted(gaps_seconds, first_seconds, next_seconds).paper


def _counted(
    gaps_seconds: Sequence[float], first_seconds: float, next_seconds: float
) -> FluidityCount:
    count = FluidityCount(first_seconds, next_seconds)
    for gap in gaps_seconds:
        count.token(gap)
    return count
