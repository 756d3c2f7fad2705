"""Linear layers on a CPU: packing of weights, and the wrapper of linear.cpp.

Activations are float32. A weight lies in memory as float32, as bfloat16, or as small integers in
groups that share a scale; the kernel makes float32 of it on the way, by the same arithmetic for any
number of rows.

Legend: N output columns (rows of a weight as checkpoints have it), K inner size, G groups of K.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch
from torch import Tensor

from atom_lite_kernels.cpu.build import load_library

_POINTER, _INTEGER = ctypes.c_void_p, ctypes.c_int64
_WEIGHT = (_INTEGER, _POINTER, _POINTER)  # format, data, scales
_MULTIPLY = (*_WEIGHT, _POINTER, *(_POINTER, _INTEGER) * 2, *(_INTEGER,) * 4)
_COLUMNS = (*_WEIGHT, _POINTER, _POINTER, _INTEGER, _INTEGER)

Mode = Literal["plain", "added", "gated"]
_MODES: dict[Mode, int] = {"plain": 0, "added": 1, "gated": 2}

Format = Literal["float32", "bfloat16", "4 half", "4 float", "8 half", "8 float"]
FORMATS: dict[Format, int] = {
    "float32": 0,
    "bfloat16": 1,
    "4 half": 2,  # 4 bits, scale and minimum of 32 in float16
    "4 float": 3,  # the same in float32
    "8 half": 4,  # 8 bits, scale of 32 in float16
    "8 float": 5,  # 8 bits, scale of 16 in float32
}
_SERVED_TYPES: dict[torch.dtype, Format] = {
    torch.float32: "float32",
    torch.bfloat16: "bfloat16",
}
GROUP = 32  # numbers of a row that share a scale


@dataclass(frozen=True, slots=True)
class Panels:
    """A weight as the kernel reads it, padded with zeros to whole panels.

    Attributes:
        format: of `data` and `scales`.
        data: one panel after the other, as linear.cpp describes them.
        scales: of the low-bit formats, else None.
        bias: float32 in the panels' order, or None.
        num_columns: of the result.
        inner: K.
        gated: whether a panel holds columns of gate and the same ones of up.
    """

    format: Format
    data: Tensor
    scales: Tensor | None
    bias: Tensor | None
    num_columns: int
    inner: int
    gated: bool


class LinearKernel:
    """What linear.cpp does. Made by `load_linear`."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._run = library.atom_lite_linear
        self._run.restype, self._run.argtypes = None, _MULTIPLY
        self._columns_of = library.atom_lite_linear_columns
        self._columns_of.restype, self._columns_of.argtypes = None, _COLUMNS
        library.atom_lite_linear_panel.restype = ctypes.c_int64
        self._panel: int = library.atom_lite_linear_panel()

    def pack(self, weight: Tensor, bias: Tensor | None = None, *, gated: bool = False) -> Panels:
        """Pack weight [N, K] float32 or bfloat16 for y = x @ weight.T + bias.

        Args:
            weight: read.
            bias: [N] float32; read.
            gated: the weight is gate and up, gate first, for silu(x @ gate.T) * (x @ up.T).
        """
        data = self._in_panels(weight, gated).transpose(1, 2)  # [P, K, C]
        data = _side_by_side(data) if weight.dtype == torch.bfloat16 else data.contiguous()
        return self._panels(_SERVED_TYPES[weight.dtype], data, None, weight, bias, gated)

    def pack_groups(
        self,
        quants: Tensor,
        scale: Tensor,
        minimum: Tensor | None,
        bias: Tensor | None = None,
        *,
        bits: int,
        gated: bool = False,
    ) -> Panels:
        """Pack a weight quants * scale + minimum, each scale and minimum for a group of its row.

        Nothing is lost: scales that are no float16 numbers stay float32.

        Args:
            quants: [N, K] int8, of 4 bits 0 to 15 with a minimum, else -8 to 7.
            scale: [N, G] float32.
            minimum: [N, G] float32, or None; only of 4 bits.
            bias: as in `pack`.
            bits: 4, in groups of 32, or 8, in groups of 32 or 16.
            gated: as in `pack`.
        """
        if bits == 4:
            if minimum is None:
                quants, minimum = quants + 8, scale * -8.0
            assert quants.shape[1] == scale.shape[1] * GROUP
            halves = _are_halves(scale) and _are_halves(minimum)
            data = self._nibbles(quants, gated)
            scales = torch.stack([self._group_rows(t, gated) for t in (scale, minimum)], dim=2)
            kind: Format = "4 half" if halves else "4 float"
        else:
            assert minimum is None and bits == 8
            halves = quants.shape[1] == scale.shape[1] * GROUP and _are_halves(scale)
            if not halves:
                scale = scale.repeat_interleave(quants.shape[1] // scale.shape[1] // 16, dim=1)
            data = self._bytes(quants, gated)
            scales = self._group_rows(scale, gated).contiguous()
            kind = "8 half" if halves else "8 float"
        if halves:
            scales = _side_by_side(scales.half())
        return self._panels(kind, data, scales, quants, bias, gated)

    def multiply(self, x: Tensor, panels: Panels, out: Tensor | None = None) -> Tensor:
        """Map x [M, K] to [M, N], fresh or in `out`; float32, rows of both contiguous."""
        y = torch.empty(x.shape[0], panels.num_columns) if out is None else out
        self._call(x, panels, y, "gated" if panels.gated else "plain")
        return y

    def add_product(self, x: Tensor, panels: Panels, y: Tensor) -> None:
        """Add what `multiply` would give to y [M, N], in place; not for gated panels."""
        assert not panels.gated
        self._call(x, panels, y, "added")

    def columns(self, panels: Panels, ids: Tensor) -> Tensor:
        """Columns `ids` [T] int64 of the result's N, as rows [T, K] of the weight in float32."""
        assert ids.dtype == torch.int64 and ids.dim() == 1 and not panels.gated
        ids = ids.contiguous()
        if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < panels.num_columns:
            raise IndexError(f"rows {ids.tolist()} of a table of {panels.num_columns}")
        out = torch.empty(len(ids), panels.inner)
        self._columns_of(
            *_weight_arguments(panels), ids.data_ptr(), out.data_ptr(), len(ids), panels.inner
        )
        return out

    def _call(self, x: Tensor, panels: Panels, y: Tensor, mode: Mode) -> None:
        # what the C++ side takes on trust
        assert x.dtype == y.dtype == torch.float32 and x.device.type == "cpu"
        assert x.shape == (len(y), panels.inner) and y.shape[1] == panels.num_columns
        assert x.stride(1) == y.stride(1) == 1
        self._run(
            *_weight_arguments(panels),
            None if panels.bias is None else panels.bias.data_ptr(),
            *(x.data_ptr(), x.stride(0), y.data_ptr(), y.stride(0)),
            *(x.shape[0], panels.inner, panels.num_columns, _MODES[mode]),
        )

    def _panels(
        self,
        kind: Format,
        data: Tensor,
        scales: Tensor | None,
        weight: Tensor,
        bias: Tensor | None,
        gated: bool,
    ) -> Panels:
        rows, inner = weight.shape
        padded = None if bias is None else self._in_panels(bias.float(), gated).flatten()
        return Panels(kind, data, scales, padded, rows // 2 if gated else rows, inner, gated)

    def _nibbles(self, quants: Tensor, gated: bool) -> Tensor:
        """[P, K / 4, lanes, 4 rows] bytes: low half a left column, high half a right one."""
        left, right = self._in_panels(quants.to(torch.uint8), gated).chunk(2, dim=1)
        pairs = left | (right << 4)  # [P, lanes, K]
        return pairs.reshape(*pairs.shape[:2], -1, 4).transpose(1, 2).contiguous()

    def _bytes(self, quants: Tensor, gated: bool) -> Tensor:
        """[P, K / 2, lanes, 2 rows, left and right]."""
        panels = self._in_panels(quants, gated)
        halves = panels.reshape(len(panels), 2, self._panel // 2, -1, 2)
        return halves.permute(0, 3, 2, 4, 1).contiguous()

    def _group_rows(self, scale: Tensor, gated: bool) -> Tensor:
        """[P, G, C] of scales [N, G]."""
        return self._in_panels(scale, gated).transpose(1, 2)

    def _in_panels(self, rows: Tensor, gated: bool) -> Tensor:
        """Cut rows [N, ...] into [P, C, ...]; gated panels are half gate, half the same of up."""
        if not gated:
            return _cut(rows, self._panel)
        return torch.cat([_cut(half, self._panel // 2) for half in rows.chunk(2)], dim=1)


@cache
def load_linear() -> LinearKernel | None:
    """The compiled kernel, or None where it cannot be built."""
    library = load_library()
    return None if library is None else LinearKernel(library)


def serves(dtype: torch.dtype) -> bool:
    """Tell whether a weight of this type can be packed as it is."""
    return dtype in _SERVED_TYPES


def _weight_arguments(panels: Panels) -> tuple[int, int, int | None]:
    scales = None if panels.scales is None else panels.scales.data_ptr()
    return FORMATS[panels.format], panels.data.data_ptr(), scales


def _cut(rows: Tensor, width: int) -> Tensor:
    """Pad rows [N, ...] with zeros and cut them into [panels, width, ...]."""
    num_panels = -(-len(rows) // width)
    if num_panels * width != len(rows):
        padded = rows.new_zeros(num_panels * width, *rows.shape[1:])
        padded[: len(rows)] = rows
        rows = padded
    return rows.reshape(num_panels, width, *rows.shape[1:])


def _side_by_side(panels: Tensor) -> Tensor:
    """Order the columns [..., C] of 16 bits as 0, C / 2, 1, C / 2 + 1, ...: pairs fill 32 bits."""
    halves = panels.reshape(*panels.shape[:-1], 2, -1)
    return halves.transpose(-2, -1).contiguous().view(panels.shape)


def _are_halves(scale: Tensor) -> bool:
    """Tell whether float16 holds these numbers without loss; infinities and NaN stay float32."""
    return bool((scale.half().float() == scale).all() and scale.half().isfinite().all())
