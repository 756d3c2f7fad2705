"""Fixed chunks: as much as the token budget allows, or at most a given size.

The baseline that every other policy is measured against. Pure; runs in the head process.
Source: Sarathi-Serve, OSDI'24, section 4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from atom_lite.chunking.planner import ChunkDecision, ChunkRequest, Supply

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atom_lite.chunking.latency_model import LatencyModel


class FixedPlanner:
    """The same size for every chunk."""

    def __init__(self, chunk_tokens: int | None = None) -> None:
        """`chunk_tokens` None leaves the step's budget as the only bound."""
        self._chunk_tokens = chunk_tokens

    def begin_step(self, supply: Supply) -> None:
        """Nothing depends on the load."""

    def install(self, models: Sequence[LatencyModel]) -> None:
        """Nothing is planned with them; the batching policy may use them."""

    def prepare(self, request: ChunkRequest) -> None:
        """Nothing is planned ahead."""

    def next_chunk(self, request: ChunkRequest) -> ChunkDecision:
        """All that remains, all that is left of the budget, or the fixed size."""
        if request.must_be_whole or self._chunk_tokens is None:
            tokens = request.most_tokens
        else:
            tokens = min(request.most_tokens, self._chunk_tokens)
        return ChunkDecision(tokens, "whole_prompt" if request.must_be_whole else "fixed")

    def forget(self, sequence_id: int) -> None:
        """Nothing is kept."""
