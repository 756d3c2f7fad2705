"""The gated feed-forward layer of the Llama line: down(silu(gate(x)) * up(x))."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from atom_lite.layers.linear import Linear


class GatedMlp:
    """Gate and up run as one matrix [2F, E], gate first."""

    def __init__(self, gate_up: Linear, down: Linear) -> None:
        self._gate_up = gate_up
        self._down = down
        self.weight_bytes = gate_up.weight_bytes + down.weight_bytes

    def forward(self, x: Tensor) -> Tensor:
        """Map [T, E] to [T, E]."""
        gate, up = self._gate_up.forward(x).chunk(2, dim=-1)
        return self._down.forward(torch.nn.functional.silu(gate).mul_(up))
