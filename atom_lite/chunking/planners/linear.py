"""Sarathi's static schedule: chunk size falls linearly over equal spans of the prompt.

For comparison: it needs no model and knows nothing of the machine. Pure; runs in the head process.
Source: Sarathi-Serve's dynamic chunking schedule.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from atom_lite.chunking.planner import ChunkDecision, ChunkRequest, Supply
from atom_lite.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atom_lite.chunking.latency_model import LatencyModel

MULTIPLE_OF_TOKENS = 32
BUDGET_FALL, BUDGET_SPANS = 8, 4  # Sarathi-Serve's: from the budget to an eighth of it


class LinearPlanner:
    """From `high_tokens` at the start of a prompt to `low_tokens` at its end, in `stages` steps."""

    def __init__(self, *, high_tokens: int, low_tokens: int, stages: int) -> None:
        """Raises ConfigError for sizes that do not fall, or no stage."""
        if not MULTIPLE_OF_TOKENS <= low_tokens <= high_tokens:
            raise ConfigError(
                f"linear chunking goes from {high_tokens} to {low_tokens} tokens, must fall and "
                f"stay at least {MULTIPLE_OF_TOKENS}"
            )
        if stages < 1:
            raise ConfigError(f"linear chunking has {stages} stages, must be at least 1")
        fall = (high_tokens - low_tokens) / max(stages - 1, 1)
        self._sizes = [
            round((high_tokens - fall * stage) / MULTIPLE_OF_TOKENS) * MULTIPLE_OF_TOKENS
            for stage in range(stages)
        ]

    @classmethod
    def from_budget(cls, budget_tokens: int) -> LinearPlanner:
        """The schedule that a step's budget stands for; raises as the class does."""
        low = max(MULTIPLE_OF_TOKENS, budget_tokens // BUDGET_FALL)
        return cls(high_tokens=budget_tokens, low_tokens=low, stages=BUDGET_SPANS)

    def begin_step(self, supply: Supply) -> None:
        """Nothing depends on the load."""

    def install(self, models: Sequence[LatencyModel]) -> None:
        """Nothing is planned with them; the batching policy may use them."""

    def prepare(self, request: ChunkRequest) -> None:
        """Nothing is planned ahead."""

    def next_chunk(self, request: ChunkRequest) -> ChunkDecision:
        """The size of the span that the next token lies in."""
        if request.must_be_whole:
            return ChunkDecision(request.most_tokens, "whole_prompt")
        prompt_tokens = request.prefix_tokens + request.remaining_tokens
        span = request.prefix_tokens * len(self._sizes) // prompt_tokens
        return ChunkDecision(min(self._sizes[span], request.most_tokens), "schedule")

    def forget(self, sequence_id: int) -> None:
        """Nothing is kept."""
