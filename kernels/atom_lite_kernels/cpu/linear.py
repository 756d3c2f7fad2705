"""Linear layers in float32 on a CPU: packing, and the wrapper of linear.cpp.

All linear layers of SmolLM2-135M but the head (120, 425 MB), ms for M rows on two Zen 3 cores:

    M                       1     8    32    64   256
    oneDNN, packed         26    29    66   106   364
    this                   17    26    49    84   326
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
_ARGUMENTS = (_POINTER, _INTEGER, _POINTER, _POINTER, _POINTER, *(_INTEGER,) * 5)

Mode = Literal["plain", "added", "gated"]
_MODES: dict[Mode, int] = {"plain": 0, "added": 1, "gated": 2}


@dataclass(frozen=True, slots=True)
class Panels:
    """A weight as the kernel reads it.

    Attributes:
        data: [panels, K, columns of a panel], padded with zeros.
        bias: [panels * columns] in the panels' order, or None.
        num_columns: of the result.
        gated: whether a panel holds columns of gate and the same ones of up.
    """

    data: Tensor
    bias: Tensor | None
    num_columns: int
    gated: bool


class LinearKernel:
    """What linear.cpp does. Made by `load_linear`."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._run = library.atom_lite_linear_f32
        self._run.restype, self._run.argtypes = None, _ARGUMENTS
        library.atom_lite_linear_panel.restype = ctypes.c_int64
        self._panel: int = library.atom_lite_linear_panel()

    def pack(self, weight: Tensor, bias: Tensor | None = None) -> Panels:
        """Pack weight [N, K] float32 for y = x @ weight.T + bias."""
        padded = None if bias is None else self._columns(bias).flatten()
        panels = self._columns(weight).transpose(1, 2).contiguous()
        return Panels(panels, padded, len(weight), gated=False)

    def pack_gated(self, gate_up: Tensor, bias: Tensor | None = None) -> Panels:
        """Pack gate and up [2F, K], gate first, for silu(x @ gate.T) * (x @ up.T)."""
        num_columns = len(gate_up) // 2
        padded = None if bias is None else self._interleaved(bias).flatten()
        panels = self._interleaved(gate_up).transpose(1, 2).contiguous()
        return Panels(panels, padded, num_columns, gated=True)

    def multiply(self, x: Tensor, panels: Panels) -> Tensor:
        """Map x [M, K] to a fresh [M, N]; K contiguous, float32."""
        y = torch.empty(x.shape[0], panels.num_columns)
        self._call(x, panels, y, "gated" if panels.gated else "plain")
        return y

    def add_product(self, x: Tensor, panels: Panels, y: Tensor) -> None:
        """Add what `multiply` would give to y [M, N], in place; not for gated panels."""
        assert not panels.gated
        self._call(x, panels, y, "added")

    def _call(self, x: Tensor, panels: Panels, y: Tensor, mode: Mode) -> None:
        # what the C++ side takes on trust
        assert x.dtype == y.dtype == torch.float32 and x.device.type == "cpu"
        assert x.shape == (len(y), panels.data.shape[1]) and y.shape[1] == panels.num_columns
        assert x.stride(1) == y.stride(1) == 1
        self._run(
            x.data_ptr(),
            x.stride(0),
            panels.data.data_ptr(),
            None if panels.bias is None else panels.bias.data_ptr(),
            y.data_ptr(),
            y.stride(0),
            x.shape[0],
            x.shape[1],
            panels.num_columns,
            _MODES[mode],
        )

    def _columns(self, rows: Tensor, width: int | None = None) -> Tensor:
        """Pad rows [N, ...] with zeros and cut them into [panels, width, ...]."""
        width = width or self._panel
        num_panels = -(-len(rows) // width)
        padded = rows.new_zeros(num_panels * width, *rows.shape[1:])
        padded[: len(rows)] = rows
        return padded.view(num_panels, width, *rows.shape[1:])

    def _interleaved(self, gate_up: Tensor) -> Tensor:
        """Panels whose first half are rows of gate and whose second are the same rows of up."""
        gate, up = gate_up.chunk(2)
        lanes = self._panel // 2
        return torch.cat((self._columns(gate, lanes), self._columns(up, lanes)), dim=1)


@cache
def load_linear() -> LinearKernel | None:
    """The compiled kernel, or None where it cannot be built."""
    library = load_library("linear")
    return None if library is None else LinearKernel(library)
