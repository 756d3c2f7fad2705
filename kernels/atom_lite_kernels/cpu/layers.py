"""All layers of a decode step in one call: the wrapper of layers.cpp.

It does what the calls of single operations do, to the bit. SmolLM2-135M has 30 layers of ten
operations each, whose calls from Python cost more than many of them take.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from atom_lite_kernels.cpu.build import load_library
from atom_lite_kernels.cpu.kv_pages import kv_format, pointers
from atom_lite_kernels.cpu.linear import FORMATS, Panels

if TYPE_CHECKING:
    from atom_lite_kernels.paged_kv import LayerKV

_POINTER, _INTEGER, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
_MOST_PARTS = 3


class _Matrix(ctypes.Structure):
    _fields_ = (
        *(("format", _INTEGER), ("data", _POINTER), ("scales", _POINTER), ("bias", _POINTER)),
        *(("inner", _INTEGER), ("outer", _INTEGER)),
    )


class _Product(ctypes.Structure):
    _fields_ = (("parts", _Matrix * _MOST_PARTS), ("num_parts", _INTEGER))


class _Layer(ctypes.Structure):
    _fields_ = (
        *(("attention_norm", _POINTER), ("mlp_norm", _POINTER)),
        *((name, _Product) for name in ("qkv", "output", "gate_up", "down")),
        *(("pages", _POINTER), ("scales", _POINTER), ("window", _INTEGER)),
        *(("attention_epsilon", _FLOAT), ("mlp_epsilon", _FLOAT)),
    )


class _Step(ctypes.Structure):
    _fields_ = (
        *((name, _POINTER) for name in ("x", "cos", "sin", "slots", "tables", "contexts")),
        *((name, _INTEGER) for name in ("rows", "table_stride", "hidden_size", "num_heads")),
        *((name, _INTEGER) for name in ("num_kv_heads", "head_size", "block_size", "kv_format")),
        ("scale", _FLOAT),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One layer as the kernel reads it; kept.

    Attributes:
        attention_norm: [E] float32, and the epsilon that goes with it.
        qkv: parts of one matrix of (Hq + 2 Hk) * D columns: q, then k, then v.
        output: parts of the matrix back to E.
        mlp_norm: as attention_norm.
        gate_up: gated.
        down: parts of the matrix back to E.
        window: tokens of the sliding window, or None.
    """

    attention_norm: tuple[Tensor, float]
    qkv: Sequence[Panels]
    output: Sequence[Panels]
    mlp_norm: tuple[Tensor, float]
    gate_up: Panels
    down: Sequence[Panels]
    window: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRows:
    """Rows of a step, of one new token each.

    Attributes:
        cos: [T, 1, D] float32, contiguous; of the rotation, as is sin.
        sin: with its sign.
        slots: [T] int64, where the new keys and values go.
        block_tables: [T, W] int64 with contiguous rows.
        context_lens: [T] int64, contiguous; the new token included.
    """

    cos: Tensor
    sin: Tensor
    slots: Tensor
    block_tables: Tensor
    context_lens: Tensor


class LayersKernel:
    """What layers.cpp does for the layers of one stage.

    Args:
        library: with all kernels.
        layers: of one shape.
        num_heads: Hq.
        scale: of the scores.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        layers: Sequence[LayerWeights],
        *,
        num_heads: int,
        scale: float,
    ) -> None:
        self._run = library.atom_lite_layers
        self._run.restype, self._run.argtypes = None, (_POINTER, _INTEGER, _POINTER)
        self._weights = layers  # what the structures point into
        self._layers = (_Layer * len(layers))(*map(_layer, layers))
        self._num_heads, self._scale = num_heads, scale
        self._kv: Sequence[LayerKV] | None = None

    def serves(self, x: Tensor) -> bool:
        """Whether the kernel runs rows x [T, E]."""
        return x.dtype == torch.float32 and x.device.type == "cpu"

    def __call__(self, x: Tensor, kv: Sequence[LayerKV], rows: DecodeRows) -> None:
        """Run all layers on the residual stream x [T, E], in place."""
        if kv is not self._kv:
            self._bind(kv)
        num_rows, hidden_size = x.shape
        _, _, num_kv_heads, block_size, head_size = kv[0].pages.shape
        tables, contexts = rows.block_tables, rows.context_lens
        # what the C++ side takes on trust
        assert x.is_contiguous() and x.shape[1] == self._layers[0].output.parts[0].outer
        for angles in (rows.cos, rows.sin):
            assert angles.dtype == torch.float32 and angles.is_contiguous()
            assert angles.numel() == num_rows * head_size
        assert rows.slots.dtype == tables.dtype == contexts.dtype == torch.int64
        assert rows.slots.shape == contexts.shape == (num_rows,) and len(tables) == num_rows
        assert rows.slots.is_contiguous() and contexts.is_contiguous() and tables.stride(1) == 1
        step = _Step(
            *(x.data_ptr(), rows.cos.data_ptr(), rows.sin.data_ptr(), rows.slots.data_ptr()),
            *(tables.data_ptr(), contexts.data_ptr(), num_rows, tables.stride(0), hidden_size),
            *(self._num_heads, num_kv_heads, head_size, block_size),
            *(kv_format(kv[0].pages.dtype), self._scale),
        )
        self._run(ctypes.addressof(self._layers), len(self._layers), ctypes.addressof(step))

    def _bind(self, kv: Sequence[LayerKV]) -> None:
        """Note where the cache of each layer lies."""
        assert len(kv) == len(self._layers)
        assert all(one.pages.shape == kv[0].pages.shape for one in kv)
        assert all(one.pages.dtype == kv[0].pages.dtype for one in kv)
        for layer, layer_kv in zip(self._layers, kv, strict=True):
            layer.pages, layer.scales, _ = pointers(layer_kv)
        self._kv = kv


def load_layers(
    layers: Sequence[LayerWeights], *, num_heads: int, scale: float
) -> LayersKernel | None:
    """The compiled kernel for these layers, or None where it cannot be built."""
    library = load_library()
    if library is None:
        return None
    return LayersKernel(library, layers, num_heads=num_heads, scale=scale)


def _layer(weights: LayerWeights) -> _Layer:
    attention_norm, attention_epsilon = weights.attention_norm
    mlp_norm, mlp_epsilon = weights.mlp_norm
    hidden_size = len(attention_norm)
    for norm in (attention_norm, mlp_norm):
        assert norm.dtype == torch.float32 and norm.is_contiguous() and len(norm) == hidden_size
    assert weights.gate_up.gated
    return _Layer(
        attention_norm=attention_norm.data_ptr(),
        mlp_norm=mlp_norm.data_ptr(),
        qkv=_product(weights.qkv),
        output=_product(weights.output),
        gate_up=_product([weights.gate_up]),
        down=_product(weights.down),
        window=weights.window or 0,
        attention_epsilon=attention_epsilon,
        mlp_epsilon=mlp_epsilon,
    )


def _product(parts: Sequence[Panels]) -> _Product:
    assert 1 <= len(parts) <= _MOST_PARTS and len({part.inner for part in parts}) == 1
    return _Product((_Matrix * _MOST_PARTS)(*map(_matrix, parts)), len(parts))


def _matrix(panels: Panels) -> _Matrix:
    return _Matrix(
        FORMATS[panels.format],
        panels.data.data_ptr(),
        None if panels.scales is None else panels.scales.data_ptr(),
        None if panels.bias is None else panels.bias.data_ptr(),
        panels.inner,
        panels.num_columns,
    )
