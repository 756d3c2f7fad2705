"""How large the next chunk of a prompt should be.

Why a protocol of its own: order and admission (`policies/`) and chunk size are two decisions. A
planner may wish for less than the budget, to keep pipeline stages busy or deadlines met; it never
gets more. Pure; runs in the head process.
"""

from __future__ import annotations

from typing import Protocol


class ChunkPlanner(Protocol):
    """Asked once per prefill row that is about to be placed."""

    def chunk_tokens(self, *, prefix_tokens: int, remaining_tokens: int, budget_tokens: int) -> int:
        """Tokens to compute now.

        Args:
            prefix_tokens: tokens of this sequence whose KV is there already.
            remaining_tokens: tokens of its prefill still to compute, at least 1.
            budget_tokens: what the step has left, at least 1.

        Returns:
            0 (not in this step) .. min(remaining_tokens, budget_tokens).
        """
        ...


class FixedBudget:
    """As much as the token budget allows. Source: Sarathi-Serve, OSDI'24, section 4."""

    def chunk_tokens(self, *, prefix_tokens: int, remaining_tokens: int, budget_tokens: int) -> int:
        """All that remains, or all that is left of the budget."""
        del prefix_tokens  # the one rule that does not look at the prefix
        return min(remaining_tokens, budget_tokens)
