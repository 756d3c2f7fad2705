"""The reference backend: plain torch, the oracle of the other backends.

For tests and for `--attention-backend reference`, where a doubt about a fast backend is to be
settled. Works on any device, loops over the sequences in Python and must not be made faster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from atom_lite.attention.protocol import (
    AttentionMetadata,
    allocate_pages,
    page_bytes,
)
from atom_lite_kernels import reference

if TYPE_CHECKING:
    from torch import Tensor

    from atom_lite_kernels.paged_kv import LayerKV


class ReferenceBackend:
    """Attention exactly as `atom_lite_kernels.reference` defines it."""

    name = "reference"
    allocate_kv = staticmethod(allocate_pages)
    kv_bytes_per_block = staticmethod(page_bytes)

    def prepare(self, metadata: AttentionMetadata) -> AttentionMetadata:
        """Nothing to prepare."""
        return metadata

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        kv: LayerKV,
        prepared: AttentionMetadata,
        *,
        scale: float,
        sliding_window: int | None,
    ) -> Tensor:
        """Store k and v, then attend row by row."""
        reference.store_kv(kv, k, v, prepared.slot_mapping)
        return reference.paged_attention(
            q,
            kv,
            prepared.query_lens,
            prepared.context_lens,
            prepared.block_tables,
            scale=scale,
            sliding_window=sliding_window,
        )
