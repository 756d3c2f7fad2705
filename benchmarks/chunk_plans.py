"""Chunk sizes written down and given again: two runs with exactly the same boundaries.

A fitted model moves as it learns, so asking it twice is not the same plan twice. The recorder notes
every size that a planner gave; the replay gives them in the same order and refuses to go on when it
is asked something else than the planner was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atom_lite.chunking.planner import ChunkDecision, ChunkPlanner, ChunkRequest, Supply


class Given(NamedTuple):
    """A question to a planner and its answer."""

    request: ChunkRequest
    decision: ChunkDecision


class RecordingPlanner:
    """See ChunkPlanner; asks another one and notes what it says."""

    def __init__(self, inner: ChunkPlanner) -> None:
        self._inner = inner
        self.given: list[Given] = []

    def begin_step(self, supply: Supply) -> None:
        """See ChunkPlanner."""
        self._inner.begin_step(supply)

    def next_chunk(self, request: ChunkRequest) -> ChunkDecision:
        """See ChunkPlanner."""
        decision = self._inner.next_chunk(request)
        self.given.append(Given(request, decision))
        return decision

    def forget(self, sequence_id: int) -> None:
        """See ChunkPlanner."""
        self._inner.forget(sequence_id)


class ReplayPlanner:
    """See ChunkPlanner; gives what a recorder noted, from its first decision on."""

    def __init__(self, given: Sequence[Given]) -> None:
        self._given = iter(given)

    def begin_step(self, supply: Supply) -> None:
        """Nothing depends on it any more."""

    def next_chunk(self, request: ChunkRequest) -> ChunkDecision:
        """The recorded size.

        Raises:
            RuntimeError: this run has left the recorded one's path.
        """
        recorded = next(self._given, None)
        if recorded is None or recorded.request != request:
            raise RuntimeError(f"{request} was not asked in the recorded run")
        return recorded.decision

    def forget(self, sequence_id: int) -> None:
        """Nothing is kept by sequence."""
