"""Linear layers, and how their weights lie in memory.

On a CPU the weight is packed once and the plain copy is dropped, so packing costs no memory: in
float32 into the panels of our own kernel (`atom_lite_kernels.cpu.linear`), else, or without a
compiler, into oneDNN's blocked layout. All linear layers of SmolLM2-135M (120, 425 MB in float32),
ms for M rows on two Zen 3 cores; the first two rows on a quiet machine, the others on a busy one:

    M                        1     2     4     8    16    32    64   256
    panels                  17                26          49    84   326
    oneDNN                  26                29          66   106   364
    oneDNN                  20    45    42    57    79   124   112
    torch's F.linear        30    88    76   100   129   183   151
    weight @ x.T            39    44    56   115    98    82   138

oneDNN's packed operator is torch's own (its compiler emits it) but not a documented one, so it is
asked for by name and everything else falls back to F.linear.

A tied output head is packed as a copy, since the embedding needs plain rows: 113 MB more for
SmolLM2-135M. Where it cannot be packed, `PlainHead` runs it as weight @ x.T, which beats F.linear
there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from atom_lite_kernels.cpu.linear import load_linear

if TYPE_CHECKING:
    from atom_lite_kernels.cpu.linear import LinearKernel


class Product(Protocol):
    """x @ weight.T + bias in some layout of the weight."""

    def multiply(self, x: Tensor) -> Tensor:
        """Map [T, in] to a fresh [T, out]."""

    def add_product(self, x: Tensor, y: Tensor) -> None:
        """Add the product to y [T, out], in place."""


class Linear:
    """y = x @ weight.T + bias.

    Args:
        weight: [out, in]; read, and kept only where it cannot be packed.
        bias: [out] or None; kept.
        pack: False keeps the weight as it is, on any device.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None, *, pack: bool = True) -> None:
        self.weight_bytes = _num_bytes(weight, bias)
        self._product = _product(weight, bias, pack=pack)

    def forward(self, x: Tensor) -> Tensor:
        """Map [T, in] to [T, out]."""
        return self._product.multiply(x)

    def add_to(self, residual: Tensor, x: Tensor) -> None:
        """Add what `forward` gives for x [T, in] to the residual stream [T, out], in place."""
        self._product.add_product(x, residual)


class GatedLinear:
    """silu(x @ gate.T) * (x @ up.T), with gate and up as one matrix.

    Args:
        gate_up: [2F, in], gate first; read, and kept only where it cannot be packed.
        bias: [2F] or None; kept.
    """

    def __init__(self, gate_up: Tensor, bias: Tensor | None = None) -> None:
        self.weight_bytes = _num_bytes(gate_up, bias)
        kernel = _panel_kernel(gate_up) if can_pack(gate_up) else None
        self._fused = None if kernel is None else PanelProduct(kernel, gate_up, bias, gated=True)
        self._linear = None if self._fused is not None else Linear(gate_up, bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map [T, in] to [T, F]."""
        if self._fused is not None:
            return self._fused.multiply(x)
        assert self._linear is not None
        gate, up = self._linear.forward(x).chunk(2, dim=-1)
        return torch.nn.functional.silu(gate).mul_(up)


class PanelProduct:
    """Our own kernel: float32 on a CPU."""

    def __init__(
        self, kernel: LinearKernel, weight: Tensor, bias: Tensor | None, *, gated: bool = False
    ) -> None:
        pack = kernel.pack_gated if gated else kernel.pack
        self._panels = pack(weight, bias)
        self._kernel = kernel

    def multiply(self, x: Tensor) -> Tensor:
        """See Product; a gated one gives [T, F]."""
        return self._kernel.multiply(x, self._panels)

    def add_product(self, x: Tensor, y: Tensor) -> None:
        """See Product."""
        self._kernel.add_product(x, self._panels, y)


class OneDnnProduct:
    """oneDNN's blocked layout."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        # The number of rows to expect is a hint that did not change the layout from 1 to 512.
        self._packed: Any = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), 32)
        self._bias = bias

    def multiply(self, x: Tensor) -> Tensor:
        """See Product."""
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")
        return y

    def add_product(self, x: Tensor, y: Tensor) -> None:
        """See Product."""
        y.add_(self.multiply(x))


class PlainProduct:
    """The weight as it came, on any device."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight, self._bias = weight, bias

    def multiply(self, x: Tensor) -> Tensor:
        """See Product."""
        return torch.nn.functional.linear(x, self._weight, self._bias)

    def add_product(self, x: Tensor, y: Tensor) -> None:
        """See Product."""
        y.add_(self.multiply(x))


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
    """Tell whether a weight of this type can lie packed on this CPU and be multiplied natively."""
    return _panel_kernel(weight) is not None or _one_dnn_packs(weight)


def _product(weight: Tensor, bias: Tensor | None, *, pack: bool) -> Product:
    if not pack or not can_pack(weight):
        return PlainProduct(weight, bias)
    kernel = _panel_kernel(weight)
    if kernel is None:
        return OneDnnProduct(weight, bias)
    return PanelProduct(kernel, weight, bias)


def _panel_kernel(weight: Tensor) -> LinearKernel | None:
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        return None
    return load_linear()


def _one_dnn_packs(weight: Tensor) -> bool:
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


def _num_bytes(*tensors: Tensor | None) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors if tensor is not None)
