"""The gated feed-forward layer of the Llama line: down(silu(gate(x)) * up(x))."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from atom_lite.layers.linear import GatedLinear, Linear


class GatedMlp:
    """Gate and up run as one matrix, and the result goes straight to the residual stream."""

    def __init__(self, gate_up: GatedLinear, down: Linear) -> None:
        self.gate_up = gate_up
        self.down = down
        self.weight_bytes = gate_up.weight_bytes + down.weight_bytes

    def add_to(self, residual: Tensor, x: Tensor) -> None:
        """Add this layer's answer to x [T, E] to the residual stream [T, E], in place."""
        self.down.add_to(residual, self.gate_up.forward(x))
