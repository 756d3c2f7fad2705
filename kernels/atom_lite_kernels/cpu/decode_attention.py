"""Decode attention over paged KV on a CPU: the wrapper of decode_attention.cpp.

Layers that are not in the cache, two Zen 3 cores, 9 query and 3 KV heads of 64, float32: 0.73 ms
for 32 rows at context 330 (22 GB/s, of 25 that plain reads of the pages reach), where gathering the
pages and two batched matmuls take 2.2; 0.11 ms for one row at context 1000.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import torch

from atom_lite_kernels.cpu.kv_pages import pointers

if TYPE_CHECKING:
    from torch import Tensor

    from atom_lite_kernels.paged_kv import LayerKV


_POINTER, _INTEGER = ctypes.c_void_p, ctypes.c_int64
_ARGUMENTS = (
    *(_POINTER, _INTEGER, _POINTER, _POINTER, _INTEGER, _POINTER, _INTEGER, _POINTER, _POINTER),
    *(_INTEGER, _INTEGER, _INTEGER, _INTEGER, _INTEGER, ctypes.c_float, _INTEGER),
)


class DecodeAttention:
    """What decode_attention.cpp does. Made by `attention.load_attention`."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._run = library.atom_lite_decode_attention
        self._run.restype, self._run.argtypes = None, _ARGUMENTS

    def __call__(
        self,
        q: Tensor,
        kv: LayerKV,
        block_tables: Tensor,
        context_lens: Tensor,
        out: Tensor,
        *,
        scale: float,
        sliding_window: int | None,
    ) -> None:
        """Attend with one new token of each row; its keys and values are stored already.

        Args:
            q: [B, Hq, D] float32 with contiguous heads.
            kv: the layer's cache.
            block_tables: [B, W] int64 with contiguous rows.
            context_lens: [B] int64, contiguous; the new token included.
            out: [B, Hq, D], written; contiguous.
            scale: of the scores.
            sliding_window: tokens that a query sees, itself included; None for all.
        """
        num_rows, num_heads, head_size = q.shape
        _, _, num_kv_heads, block_size, _ = kv.pages.shape
        # what the C++ side takes on trust
        assert q.dtype == out.dtype == torch.float32 and kv.pages.shape[4] == head_size
        assert block_tables.dtype == context_lens.dtype == torch.int64
        assert q.stride()[1:] == (head_size, 1)
        assert out.is_contiguous() and context_lens.is_contiguous()
        assert block_tables.stride(1) == 1
        assert out.shape == q.shape and num_heads % num_kv_heads == 0
        assert len(block_tables) == len(context_lens) == num_rows
        self._run(
            *(q.data_ptr(), q.stride(0), *pointers(kv)),
            *(block_tables.data_ptr(), block_tables.stride(0), context_lens.data_ptr()),
            *(out.data_ptr(), num_rows, num_heads, num_kv_heads, block_size, head_size),
            *(scale, sliding_window or 0),
        )
