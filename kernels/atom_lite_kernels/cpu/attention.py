"""The compiled kernels of attention on a CPU, all or none: store, decode, prefill."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import torch

from atom_lite_kernels.cpu.build import load_library
from atom_lite_kernels.cpu.decode_attention import DecodeAttention
from atom_lite_kernels.cpu.kv_pages import KVStore, serves_pages
from atom_lite_kernels.cpu.prefill_attention import PrefillAttention

if TYPE_CHECKING:
    import ctypes

    from atom_lite_kernels.paged_kv import LayerKV


class AttentionKernels:
    """The kernels of one library. Made by `load_attention`.

    Attributes:
        store: writes keys and values into pages.
        decode: attends with rows of one token, pages in place.
        prefill: attends with chunks, pages in place.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self.store = KVStore(library)
        self.decode = DecodeAttention(library)
        self.prefill = PrefillAttention(library)

    def serve(self, dtype: torch.dtype, kv: LayerKV) -> bool:
        """Whether queries of this type can attend over this cache."""
        return (
            dtype == torch.float32
            and serves_pages(kv.pages.dtype)
            and self.prefill.serves(kv.pages.shape[4])
        )


@cache
def load_attention() -> AttentionKernels | None:
    """The compiled kernels, or None where they cannot be built."""
    library = load_library()
    return None if library is None else AttentionKernels(library)
