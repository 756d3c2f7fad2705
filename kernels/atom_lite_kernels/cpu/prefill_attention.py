"""Prefill attention over paged KV on a CPU: the wrapper of prefill_attention.cpp.

One layer of 9 query and 3 KV heads of 64 in float32, chunk 512, ms on two Zen 3 cores:

    prefix                    0    2000    4000    7500
    this                    2.9      22      45      94
    torch's fused kernel    5.7      32      65     126
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
    *(_POINTER, _INTEGER, _POINTER, _POINTER, _INTEGER, _POINTER, _POINTER),
    *(_INTEGER,) * 6,
    *(ctypes.c_float, _INTEGER),
)


class PrefillAttention:
    """What prefill_attention.cpp does. Made by `attention.load_attention`."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._run = library.atom_lite_prefill_attention
        self._run.restype, self._run.argtypes = None, _ARGUMENTS
        library.atom_lite_prefill_longest_head.restype = _INTEGER
        self._longest_head: int = library.atom_lite_prefill_longest_head()

    def serves(self, head_size: int) -> bool:
        """Whether the kernel's tiles hold heads of this size."""
        return head_size <= self._longest_head

    def attend(
        self,
        q: Tensor,
        kv: LayerKV,
        block_table: Tensor,
        prefix_tokens: int,
        out: Tensor,
        *,
        scale: float,
        sliding_window: int | None,
    ) -> None:
        """Attend with one chunk; its keys and values are stored already.

        Args:
            q: [x, Hq, D] float32 with contiguous heads.
            kv: the layer's cache.
            block_table: [blocks or more] int64, contiguous; of the sequence.
            prefix_tokens: tokens of the sequence before the chunk.
            out: [x, Hq, D], written; contiguous.
            scale: of the scores.
            sliding_window: tokens that a query sees, itself included; None for all.
        """
        num_tokens, num_heads, head_size = q.shape
        _, _, num_kv_heads, block_size, _ = kv.pages.shape
        # what the C++ side takes on trust
        assert self.serves(head_size) and q.dtype == out.dtype == torch.float32
        assert q.stride()[1:] == (head_size, 1) and out.shape == q.shape
        assert out.is_contiguous() and block_table.is_contiguous()
        assert kv.pages.shape[4] == head_size and num_heads % num_kv_heads == 0
        assert block_table.dtype == torch.int64
        assert len(block_table) * block_size >= prefix_tokens + num_tokens
        self._run(
            *(q.data_ptr(), q.stride(0), *pointers(kv), block_table.data_ptr(), out.data_ptr()),
            *(prefix_tokens, num_tokens, num_heads, num_kv_heads, block_size, head_size),
            *(scale, sliding_window or 0),
        )
