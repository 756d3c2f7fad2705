"""Weights as small integers in groups that share a scale: how GGUF files hold them.

A number is quant * scale, or quant * scale + minimum. What a file holds is kept without loss; plain
weights are rounded by `quantize`. `layers.linear` packs them for our kernel.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

GROUP = 32  # numbers of a row that `quantize` gives one scale
Weight: TypeAlias = "Tensor | GroupedWeight"


@dataclass(frozen=True, slots=True)
class GroupedWeight:
    """A matrix [N, K].

    Attributes:
        quants: [N, K] int8; of 4 bits 0 to 15 with a minimum, else -8 to 7.
        scale: [N, groups of K] float32.
        minimum: [N, groups of K] float32, or None.
        bits: 4 or 8.
    """

    quants: Tensor
    scale: Tensor
    minimum: Tensor | None
    bits: int

    def expand(self, dtype: torch.dtype) -> Tensor:
        """The matrix as plain numbers."""
        groups = self.quants.float().view(*self.scale.shape, -1) * self.scale.unsqueeze(-1)
        if self.minimum is not None:
            groups += self.minimum.unsqueeze(-1)
        return groups.view(self.quants.shape).to(dtype)

    def rows(self, order: Tensor) -> GroupedWeight:
        """The matrix of these rows."""
        minimum = None if self.minimum is None else self.minimum[order]
        return replace(self, quants=self.quants[order], scale=self.scale[order], minimum=minimum)

    def is_like(self, other: Weight) -> bool:
        """Tell whether both fit into one matrix."""
        return (
            isinstance(other, GroupedWeight)
            and self.bits == other.bits
            and (self.minimum is None) == (other.minimum is None)
            and self.quants.shape[1] == other.quants.shape[1]
            and self.scale.shape[1] == other.scale.shape[1]
        )


def quantize(weight: Tensor, bits: int) -> GroupedWeight:
    """Round a matrix [N, K], K a multiple of 32.

    8 bits: from -127 to 127 times a scale. 4 bits: from 0 to 15 between the least and the largest
    number of the group. Scale and minimum are float16 numbers.
    """
    groups = weight.float().reshape(len(weight), -1, GROUP)
    if bits == 8:
        scale, minimum = _half(groups.abs().amax(-1) / 127), None
        levels = groups
        low, high = -127, 127
    else:
        least = _half(groups.amin(-1))
        scale, minimum = _half((groups.amax(-1) - least) / 15), least
        levels = groups - least.unsqueeze(-1)
        low, high = 0, 15
    divisor = torch.where(scale == 0, 1.0, scale).unsqueeze(-1)
    quants = (levels / divisor).round().clamp(low, high).to(torch.int8)
    return GroupedWeight(quants.view(weight.shape), scale, minimum, bits)


def join(weights: Sequence[Weight]) -> list[Weight]:
    """Stack matrices of the same K; neighbours of one kind become one."""
    joined: list[list[Weight]] = []
    for weight in weights:
        if joined and _alike(joined[-1][0], weight):
            joined[-1].append(weight)
        else:
            joined.append([weight])
    return [_stack(same) for same in joined]


def _alike(first: Weight, second: Weight) -> bool:
    if isinstance(first, GroupedWeight):
        return first.is_like(second)
    return not isinstance(second, GroupedWeight) and first.dtype == second.dtype


def _stack(same: list[Weight]) -> Weight:
    if len(same) == 1:
        return same[0]
    grouped = [weight for weight in same if isinstance(weight, GroupedWeight)]
    if not grouped:
        return torch.cat([weight for weight in same if isinstance(weight, Tensor)])
    minima = [weight.minimum for weight in grouped if weight.minimum is not None]
    return GroupedWeight(
        torch.cat([weight.quants for weight in grouped]),
        torch.cat([weight.scale for weight in grouped]),
        torch.cat(minima) if minima else None,
        grouped[0].bits,
    )


def _half(values: Tensor) -> Tensor:
    """Round to float16 numbers, kept in float32."""
    limit = torch.finfo(torch.float16).max
    return values.clamp(-limit, limit).half().float()
