"""Reads a checkpoint's tensors as the layers are to hold them: in types, or quantized.

Runs once per stage at start, in the process that loads its layers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from atom_lite.layers.grouped_weight import GROUP, quantize
from atom_lite.layers.linear import has_panels
from atom_lite.models.load_gguf import GgufWeights

if TYPE_CHECKING:
    from torch import Tensor

    from atom_lite.layers.grouped_weight import GroupedWeight, Weight
    from atom_lite.models.dtype import ModelTypes
    from atom_lite.models.weights import WeightSource

CPU = torch.device("cpu")


class MatrixReader:
    """One checkpoint, read for one way to hold it.

    A matrix whose rows do not split into groups stays in the type of the weights. Without our
    kernel a quantized matrix is expanded: the same numbers, and no memory is saved.

    Args:
        source: the checkpoint.
        types: of its numbers.
    """

    def __init__(self, source: WeightSource, types: ModelTypes) -> None:
        self._source = source
        self._types = types

    def read(self, name: str) -> Weight:
        """Give a layer's matrix."""
        return self._read(name, bits=4 if self._types.quantization == "int4" else 8)

    def read_table(self, name: str) -> Weight:
        """Give the embedding or the output head: rounded to 8 bits at least."""
        return self._read(name, bits=8)

    def read_vector(self, name: str) -> Tensor:
        """Give a norm or a bias, in the type of the activations."""
        return self._source.read(name).to(self._types.activations)

    def _read(self, name: str, bits: int) -> Weight:
        groups: GroupedWeight | None = None
        quantization = self._types.quantization
        if quantization == "gguf" and isinstance(self._source, GgufWeights):
            groups = self._source.read_groups(name)
        if groups is None:
            weight = self._source.read(name)
            if quantization in ("none", "gguf") or weight.shape[1] % GROUP:
                return weight
            groups = quantize(weight, bits)
        if has_panels(torch.float32, CPU):
            return groups
        return groups.expand(self._types.weights)
