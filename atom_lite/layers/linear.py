"""Linear layers, and how their weights lie in memory.

On a CPU with our compiled kernel (`atom_lite_kernels.cpu.linear`) activations are float32, and a
weight lies in panels as float32, bfloat16 or small integers in groups; the plain copy is dropped,
so packing costs no memory. Without a compiler a float weight goes into oneDNN's blocked layout and
activations have its type. All linear layers of SmolLM2-135M (120, 425 MB in float32), ms for M rows
on two Zen 3 cores; the first two rows on a quiet machine, the others on a busy one:

    M                        1     2     4     8    16    32    64   256
    panels, float32         17                26          49    84   326
    oneDNN                  26                29          66   106   364
    oneDNN                  20    45    42    57    79   124   112
    torch's F.linear        30    88    76   100   129   183   151
    weight @ x.T            39    44    56   115    98    82   138

oneDNN's packed operator is torch's own (its compiler emits it) but not a documented one, so it is
asked for by name and everything else falls back to F.linear.

A tied output head shares the embedding's panels (`layers.embedding`). Without them it is packed as
a copy, since the embedding needs plain rows: 113 MB more for SmolLM2-135M. Where it cannot be
packed, `PlainHead` runs it as weight @ x.T, which beats F.linear there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from atom_lite.layers.grouped_weight import GroupedWeight, Weight
from atom_lite_kernels.cpu.linear import load_linear, serves

if TYPE_CHECKING:
    from atom_lite_kernels.cpu.linear import LinearKernel, Panels


class Product(Protocol):
    """x @ weight.T + bias in some layout of the weight."""

    def multiply(self, x: Tensor) -> Tensor:
        """Map [T, in] to a fresh [T, out]."""

    def add_product(self, x: Tensor, y: Tensor) -> None:
        """Add the product to y [T, out], in place."""

    def panels(self) -> list[Panels] | None:
        """What our kernel multiplies by, one part beside the other; None where it does not."""


class Linear:
    """y = x @ weight.T + bias.

    Args:
        weight: [out, in]; read, and kept only where it cannot be packed. A list holds parts of it,
            one below the other, that lie in memory in different ways.
        bias: [out] in the type of the activations, or None; kept.
        pack: False keeps a plain weight as it is, on any device.
    """

    def __init__(
        self, weight: Weight | list[Weight], bias: Tensor | None = None, *, pack: bool = True
    ) -> None:
        self._product: Product
        if isinstance(weight, list) and len(weight) > 1:
            self._product = SplitProduct(weight, bias)
            self.weight_bytes = self._product.num_bytes
            return
        if isinstance(weight, list):
            (weight,) = weight
        packed = pack_panels(weight, bias) if pack else None
        self.weight_bytes = weight_bytes(weight, packed) + num_bytes(bias)
        if packed is not None:
            self._product = packed
        else:
            assert isinstance(weight, Tensor)
            one_dnn = pack and one_dnn_packs(weight)
            self._product = (OneDnnProduct if one_dnn else PlainProduct)(weight, bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map [T, in] to [T, out]."""
        return self._product.multiply(x)

    def add_to(self, residual: Tensor, x: Tensor) -> None:
        """Add what `forward` gives for x [T, in] to the residual stream [T, out], in place."""
        self._product.add_product(x, residual)

    def panels(self) -> list[Panels] | None:
        """See Product."""
        return self._product.panels()


class GatedLinear:
    """silu(x @ gate.T) * (x @ up.T), with gate and up as one matrix.

    Args:
        gate_up: [2F, in], gate first; read, and kept only where it cannot be packed. A list of
            parts as in Linear.
        bias: [2F] in the type of the activations, or None; kept.
    """

    def __init__(self, gate_up: Weight | list[Weight], bias: Tensor | None = None) -> None:
        whole = gate_up[0] if isinstance(gate_up, list) and len(gate_up) == 1 else gate_up
        self._fused: PanelProduct | None = None
        self._linear: Linear | None = None
        if not isinstance(whole, list):
            self._fused = pack_panels(whole, bias, gated=True)
        if self._fused is None:
            self._linear = Linear(gate_up, bias)
            self.weight_bytes = self._linear.weight_bytes
        else:
            assert not isinstance(whole, list)
            self.weight_bytes = weight_bytes(whole, self._fused) + num_bytes(bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map [T, in] to [T, F]."""
        if self._fused is not None:
            return self._fused.multiply(x)
        assert self._linear is not None
        gate, up = self._linear.forward(x).chunk(2, dim=-1)
        return torch.nn.functional.silu(gate).mul_(up)

    def panels(self) -> list[Panels] | None:
        """The one matrix of gate and up, where our kernel multiplies by it."""
        return None if self._fused is None else self._fused.panels()


class PanelProduct:
    """Our own kernel: activations in float32 on a CPU."""

    def __init__(self, kernel: LinearKernel, panels: Panels) -> None:
        self._kernel, self._panels = kernel, panels

    @property
    def num_bytes(self) -> int:
        """What the panels take, without the bias."""
        return num_bytes(self._panels.data, self._panels.scales)

    @property
    def num_columns(self) -> int:
        """Columns of the result."""
        return self._panels.num_columns

    def head(self) -> PanelHead:
        """An output head over the same panels."""
        return PanelHead(self)

    def rows(self, ids: Tensor) -> Tensor:
        """Rows `ids` [T] of the weight, in float32."""
        return self._kernel.columns(self._panels, ids)

    def multiply(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """See Product; a gated one gives [T, F]. `out` is written where it is given."""
        return self._kernel.multiply(x, self._panels, out)

    def add_product(self, x: Tensor, y: Tensor) -> None:
        """See Product."""
        self._kernel.add_product(x, self._panels, y)

    def panels(self) -> list[Panels]:
        """See Product."""
        return [self._panels]


class SplitProduct:
    """Parts of a weight, one below the other, each in panels of its own format."""

    def __init__(self, weights: list[Weight], bias: Tensor | None) -> None:
        self._parts: list[tuple[PanelProduct, slice]] = []
        first = 0
        for weight in weights:
            size = _num_rows(weight)
            rows = slice(first, first + size)
            packed = pack_panels(weight, None if bias is None else bias[rows])
            assert packed is not None, "only our kernel's weights are mixed"
            self._parts.append((packed, rows))
            first += size
        self._num_columns = first
        self.num_bytes = sum(part.num_bytes for part, _ in self._parts) + num_bytes(bias)

    def multiply(self, x: Tensor) -> Tensor:
        """See Product."""
        y = torch.empty(x.shape[0], self._num_columns)
        for part, columns in self._parts:
            part.multiply(x, y[:, columns])
        return y

    def add_product(self, x: Tensor, y: Tensor) -> None:
        """See Product."""
        for part, columns in self._parts:
            part.add_product(x, y[:, columns])

    def panels(self) -> list[Panels]:
        """See Product."""
        return [panels for part, _ in self._parts for panels in part.panels()]


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

    def panels(self) -> None:
        """See Product."""


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

    def panels(self) -> None:
        """See Product."""


class PanelHead:
    """An output head [V, E] whose panels are the embedding's; kept, not copied."""

    weight_bytes = 0

    def __init__(self, product: PanelProduct) -> None:
        self._product = product

    def forward(self, x: Tensor) -> Tensor:
        """Map [R, E] to logits [R, V]."""
        return self._product.multiply(x)


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


def panel_kernel(weight: Weight) -> LinearKernel | None:
    """Our kernel, where it serves a weight of this type and device."""
    if isinstance(weight, GroupedWeight):
        return load_linear()
    if weight.device.type != "cpu" or not serves(weight.dtype):
        return None
    return load_linear()


def has_panels(dtype: torch.dtype, device: torch.device) -> bool:
    """Tell whether weights of this type lie in panels there, so that activations are float32."""
    return panel_kernel(torch.empty(0, dtype=dtype, device=device)) is not None


def pack_panels(
    weight: Weight, bias: Tensor | None = None, *, gated: bool = False
) -> PanelProduct | None:
    """Pack a weight for our kernel; None where that does not serve it."""
    kernel = panel_kernel(weight)
    if kernel is None:
        return None
    if isinstance(weight, Tensor):
        return PanelProduct(kernel, kernel.pack(weight, bias, gated=gated))
    panels = kernel.pack_groups(
        *(weight.quants, weight.scale, weight.minimum, bias), bits=weight.bits, gated=gated
    )
    return PanelProduct(kernel, panels)


def weight_bytes(weight: Weight, packed: PanelProduct | None) -> int:
    """Bytes of a weight in memory: of plain numbers by count, of grouped ones as packed."""
    if isinstance(weight, Tensor):
        return num_bytes(weight)
    assert packed is not None
    return packed.num_bytes


def one_dnn_packs(weight: Tensor) -> bool:
    """Tell whether oneDNN multiplies natively by a packed weight of this type on this CPU."""
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


def num_bytes(*tensors: Tensor | None) -> int:
    """Bytes that the numbers of these tensors take."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors if tensor is not None)


def _num_rows(weight: Weight) -> int:
    return len(weight.quants) if isinstance(weight, GroupedWeight) else len(weight)
