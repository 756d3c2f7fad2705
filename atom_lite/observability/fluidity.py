"""Counts how many tokens of one stream come in time, in both definitions of the field.

The recurrence of `scheduler/fluidity.py`, which says what the definitions are, gap by gap: metrics
see a token when it comes and keep no list. Pure; frontend process, simulation and benchmarks.
"""

from __future__ import annotations

import math

from atom_lite.errors import ConfigError


class FluidityCount:
    """Of one stream.

    Args:
        first_seconds: what the first token may take; None for as long as it takes, without slack.
        next_seconds: what each after it may take, above 0.

    Raises:
        ConfigError: no time for a token.
    """

    __slots__ = ("_first_seconds", "_missed", "_next_seconds", "_num_late", "_num_tokens", "_slack")

    def __init__(self, first_seconds: float | None, next_seconds: float) -> None:
        if not next_seconds > 0.0:
            raise ConfigError(f"the deadline of a token is {next_seconds} s, must be above 0")
        self._first_seconds = first_seconds
        self._next_seconds = next_seconds
        self._slack = 0.0
        self._num_tokens = 0
        self._num_late = 0
        self._missed = 0  # deadlines

    def token(self, gap_seconds: float) -> None:
        """A token came so long after the one before, the first one after the arrival."""
        deadline = self._next_seconds
        if not self._num_tokens:
            deadline = gap_seconds if self._first_seconds is None else self._first_seconds
        self._num_tokens += 1
        over = gap_seconds - self._slack - deadline
        if gap_seconds <= deadline + self._slack:
            self._slack += deadline - gap_seconds
            return
        self._num_late += 1
        self._missed += math.floor(over / self._next_seconds) + 1
        self._slack = 0.0

    @property
    def docs(self) -> float:
        """The share of tokens on time, each counted once; 1.0 where there is none."""
        return 1.0 - self._num_late / self._num_tokens if self._num_tokens else 1.0

    @property
    def paper(self) -> float:
        """The share of deadlines kept, a late token missing all that passed; 1.0 without tokens."""
        total = self._num_tokens - self._num_late + self._missed
        return 1.0 - self._missed / total if total else 1.0
