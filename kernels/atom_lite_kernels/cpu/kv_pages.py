"""Storing into the paged KV cache, and what the kernels take of it: kv_pages.h and store_kv.cpp.

Queries, keys and values of a step are float32; the pages hold them in one of the types of
`atom_lite_kernels.paged_kv`.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import torch

from atom_lite_kernels.paged_kv import is_scaled

if TYPE_CHECKING:
    from torch import Tensor

    from atom_lite_kernels.paged_kv import LayerKV

_POINTER, _INTEGER = ctypes.c_void_p, ctypes.c_int64
_FORMATS = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2, torch.float8_e4m3fn: 3}


def pointers(kv: LayerKV) -> tuple[int, int | None, int]:
    """Pages, scales and format, as the C++ side takes them on trust."""
    pages, scales = kv.pages, kv.scales
    assert pages.is_contiguous() and pages.device.type == "cpu"
    assert (scales is not None) == is_scaled(pages.dtype)
    if scales is not None:
        assert scales.is_contiguous() and scales.dtype == torch.float32
        assert scales.shape == pages.shape[:4]
    return pages.data_ptr(), None if scales is None else scales.data_ptr(), kv_format(pages.dtype)


def kv_format(dtype: torch.dtype) -> int:
    """The number of a type of pages on the C++ side."""
    return _FORMATS[dtype]


def serves_pages(dtype: torch.dtype) -> bool:
    """Whether the kernels read and write pages of this type."""
    return dtype in _FORMATS


class KVStore:
    """What store_kv.cpp does. Made by `attention.load_attention`."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._run = library.atom_lite_store_kv
        self._run.restype = None
        self._run.argtypes = (
            *(_POINTER, _POINTER, _INTEGER, _POINTER, _POINTER, _INTEGER, _POINTER),
            *(_INTEGER,) * 4,
        )

    def __call__(self, kv: LayerKV, keys: Tensor, values: Tensor, slot_mapping: Tensor) -> None:
        """Write float32 keys and values [T, Hk, D] into their slots; see `reference.store_kv`."""
        num_rows, num_kv_heads, head_size = keys.shape
        assert keys.dtype == values.dtype == torch.float32
        assert slot_mapping.dtype == torch.int64 and slot_mapping.shape == (num_rows,)
        assert keys.stride() == values.stride() and keys.stride()[1:] == (head_size, 1)
        assert slot_mapping.is_contiguous()
        assert kv.pages.shape[2] == num_kv_heads and kv.pages.shape[4] == head_size
        self._run(
            *(keys.data_ptr(), values.data_ptr(), keys.stride(0), *pointers(kv)),
            *(slot_mapping.data_ptr(), num_rows, num_kv_heads, kv.pages.shape[3], head_size),
        )
