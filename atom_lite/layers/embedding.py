"""Token embedding."""

from __future__ import annotations

import torch
from torch import Tensor


class Embedding:
    """Rows of a table, one per token id.

    Args:
        weight: [V, E], kept; a tied output head shares it.
    """

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight
        self.weight_bytes = weight.numel() * weight.element_size()

    def forward(self, token_ids: Tensor) -> Tensor:
        """Look up [T] ids, giving a fresh [T, E]."""
        return torch.nn.functional.embedding(token_ids, self.weight)
