"""Root-mean-square normalisation."""

from __future__ import annotations

import torch
from torch import Tensor

from atom_lite_kernels.cpu.elementwise import elementwise_for


class RmsNorm:
    """Divide each row by its root mean square, then multiply by a weight.

    Attributes:
        weight: [E], kept.
        epsilon: added to the mean square.
    """

    def __init__(self, weight: Tensor, epsilon: float) -> None:
        self.weight = weight
        self.epsilon = epsilon
        self._kernels = elementwise_for(weight)
        self.weight_bytes = weight.numel() * weight.element_size()

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the rows of x [T, E]."""
        if self._kernels is not None:
            return self._kernels.rms_norm(x, self.weight, self.epsilon)
        return torch.nn.functional.rms_norm(x, self.weight.shape, self.weight, self.epsilon)
