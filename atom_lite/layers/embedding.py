"""Token embedding, and the output head that shares its table.

On a CPU with our compiled kernel the table lies in the panels that the head multiplies by, and rows
are read out of them: one copy of the weight serves both. Finding a row costs about two microseconds
more than in a plain table, nothing beside the layers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from atom_lite.layers.linear import Linear, PlainHead, one_dnn_packs, pack_panels, weight_bytes

if TYPE_CHECKING:
    from atom_lite.layers.grouped_weight import Weight
    from atom_lite.layers.linear import PanelHead, PanelProduct


class PlainTable:
    """Rows of a table [V, E] as it came, given in its type."""

    def __init__(self, weight: Tensor) -> None:
        self._weight = weight

    def rows(self, token_ids: Tensor) -> Tensor:
        """Give a fresh [T, E] for [T] ids."""
        return torch.nn.functional.embedding(token_ids, self._weight)

    def head(self) -> Linear | PlainHead:
        """The head over this table: a packed copy makes a lone row 4 times faster."""
        if one_dnn_packs(self._weight):
            return Linear(self._weight)
        return PlainHead(self._weight)


class Embedding:
    """Rows of a table, one per token id.

    Args:
        weight: [V, E]; read, and kept only where it cannot be packed.
    """

    def __init__(self, weight: Weight) -> None:
        packed = pack_panels(weight)
        self._table: PanelProduct | PlainTable
        if packed is not None:
            self._table = packed
        else:
            assert isinstance(weight, Tensor)
            self._table = PlainTable(weight)
        self.weight_bytes = weight_bytes(weight, packed)

    def forward(self, token_ids: Tensor) -> Tensor:
        """Look up [T] ids, giving a fresh [T, E] in the type of the activations."""
        return self._table.rows(token_ids)

    def head(self) -> Linear | PanelHead | PlainHead:
        """The output head of a model that ties it to this table."""
        return self._table.head()
