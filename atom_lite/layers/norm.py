"""Root-mean-square normalisation."""

from __future__ import annotations

import torch
from torch import Tensor


class RmsNorm:
    """Divide each row by its root mean square, then multiply by a weight.

    Args:
        weight: [E], kept.
        epsilon: added to the mean square.
    """

    def __init__(self, weight: Tensor, epsilon: float) -> None:
        self._weight = weight
        self._epsilon = epsilon
        self.weight_bytes = weight.numel() * weight.element_size()

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension, which has the weight's length."""
        return torch.nn.functional.rms_norm(x, self._weight.shape, self._weight, self._epsilon)
