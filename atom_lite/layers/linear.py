"""Linear layers, and how their weights lie in memory.

On a CPU the weight is packed once into oneDNN's blocked layout and the plain copy is dropped, so it
costs no memory. All linear layers of SmolLM2-135M (120, 425 MB in float32), ms for M rows on two
Zen 3 cores that others used too:

    M                        1     2     4     8    16    32    64   128
    torch's F.linear        30    88    76   100   129   183   151   261
    transposed weight       23    60    99   129   149   183   150   291
    weight @ x.T            39    44    56   115    98    82   138   360
    packed (this)           20    45    42    57    79   124   112   192

The packed operator is torch's own (its compiler emits it) but not a documented one, so it is asked
for by name and everything else falls back to F.linear.

A tied output head is packed as a copy, since the embedding needs plain rows: 113 MB more for
SmolLM2-135M, and 4.8 / 7.9 / 16 ms for 1 / 8 / 32 rows instead of 21 / 14 / 22. Where it cannot be
packed, `PlainHead` runs it as weight @ x.T, which beats F.linear there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Linear:
    """y = x @ weight.T + bias.

    Args:
        weight: [out, in]; read, and kept only where it cannot be packed.
        bias: [out] or None; kept.
        pack: False keeps the weight as it is, on any device.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None, *, pack: bool = True) -> None:
        self.weight_bytes = weight.numel() * weight.element_size()
        if bias is not None:
            self.weight_bytes += bias.numel() * bias.element_size()
        self._bias = bias
        self._packed: Any = _pack(weight) if pack and can_pack(weight) else None
        self._weight = weight if self._packed is None else None

    def forward(self, x: Tensor) -> Tensor:
        """Map [T, in] to [T, out]."""
        if self._packed is not None:
            y: Tensor = torch.ops.mkldnn._linear_pointwise(
                x, self._packed, self._bias, "none", [], ""
            )
            return y
        assert self._weight is not None
        return torch.nn.functional.linear(x, self._weight, self._bias)


class PlainHead:
    """An output head whose weight [V, E] is shared with the embedding; kept, not copied."""

    weight_bytes = 0

    def __init__(self, weight: Tensor) -> None:
        self._weight = weight

    def forward(self, x: Tensor) -> Tensor:
        """Map [R, E] to logits [R, V]."""
        if self._weight.device.type != "cpu":
            return torch.nn.functional.linear(x, self._weight)
        if x.shape[0] > 1:
            return torch.mm(self._weight, x.t()).t()
        # One row would take a slow matrix-vector path (8 ms for 5): ask for it twice, in memory of
        # its own, since an expanded row is laid out column by column, which takes 40 ms.
        return torch.mm(self._weight, x.repeat(2, 1).t()).t()[:1]


def can_pack(weight: Tensor) -> bool:
    """Tell whether this torch and this CPU multiply by a packed weight of this type natively."""
    if weight.device.type != "cpu" or not torch._C._has_mkldnn:
        return False
    operators = torch.ops.mkldnn
    if not hasattr(operators, "_linear_pointwise"):
        return False
    if weight.dtype == torch.float32:
        return True
    if weight.dtype == torch.bfloat16:
        return bool(operators._is_mkldnn_bf16_supported())
    if weight.dtype == torch.float16:
        return bool(operators._is_mkldnn_fp16_supported())
    return False


def _pack(weight: Tensor) -> Any:
    # The number of rows to expect is a hint that did not change the layout from 1 to 512.
    return torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), 32)
