"""What a step looks like to attention, and what an attention backend must do.

The worker builds one `AttentionMetadata` per step; the backend's `prepare` turns it into whatever
its `attend` needs (indices, masks, launch grids) once, and the decoder passes that to every layer.

A backend owns the layout of the KV cache, here that of `LayerKV`: block-major, so that one block of
a layer is one contiguous piece of memory. Resident memory then follows use when low blocks are
taken first, and a block can be sent elsewhere in one copy.

Legend: T tokens of the step, B sequences (rows) of the step, N KV blocks, S slots of a block,
Hq / Hk query / KV heads, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from atom_lite_kernels.paged_kv import LayerKV as LayerKV
from atom_lite_kernels.paged_kv import is_scaled


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionMetadata:
    """One step, as attention sees it. Rows keep the plan's order: decodes first, then chunks.

    A row of one token is a decode, whatever the scheduler calls it.
    """

    query_lens: list[int]  # B, new tokens of each row
    context_lens: list[int]  # B, tokens of the prefix and the new ones together
    block_tables: Tensor  # [B, most blocks of a row] int64; unused entries hold any valid id
    slot_mapping: Tensor  # [T] int64, block id * block_size + offset, one per new token
    block_size: int

    @staticmethod
    def build(
        query_lens: list[int],
        context_lens: list[int],
        block_tables: list[list[int]],
        block_size: int,
        device: torch.device | str = "cpu",
    ) -> AttentionMetadata:
        """Pad the block tables and work out the slots."""
        widest = max(len(table) for table in block_tables)
        padded = torch.tensor([table + [0] * (widest - len(table)) for table in block_tables])
        lens = torch.tensor(query_lens)
        rows = torch.repeat_interleave(torch.arange(len(query_lens)), lens)  # [T]
        row_ends = lens.cumsum(0)
        # token t of the step, in row r, stands at context[r] - (end of r in the step) + t
        position = torch.arange(len(rows)) + (torch.tensor(context_lens) - row_ends)[rows]
        blocks = padded[rows, position // block_size]
        return AttentionMetadata(
            query_lens=query_lens,
            context_lens=context_lens,
            block_tables=padded.to(device),
            slot_mapping=(blocks * block_size + position % block_size).to(device),
            block_size=block_size,
        )


class Backend(Protocol):
    """An implementation of attention over paged KV."""

    @property
    def name(self) -> str:
        """What `--attention-backend` calls it."""

    def allocate_kv(
        self,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> list[LayerKV]:
        """Make the KV cache, all zero: a kernel may read a slot nobody wrote, but never a NaN."""

    def kv_bytes_per_block(
        self,
        num_layers: int,
        block_size: int,
        num_kv_heads: int,
        head_size: int,
        dtype: torch.dtype,
    ) -> int:
        """Bytes that one block takes over all layers."""

    def prepare(self, metadata: AttentionMetadata) -> Any:
        """Do once per step what all layers share. The result is only passed back to `attend`."""

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        kv: LayerKV,
        prepared: Any,
        *,
        scale: float,
        sliding_window: int | None,
    ) -> Tensor:
        """Store k and v [T, Hk, D], made finite, then attend with q [T, Hq, D].

        Returns:
            [T, Hq, D], contiguous.
        """


def allocate_pages(
    num_layers: int,
    num_blocks: int,
    block_size: int,
    num_kv_heads: int,
    head_size: int,
    dtype: torch.dtype,
    device: torch.device,
) -> list[LayerKV]:
    """Allocate zeroed pages for backends that use the common layout.

    On a CPU the zeros are the kernel's own untouched pages (calloc), so memory becomes resident
    only block by block as it is used; torch.zeros would write all of it.
    """
    shape = (num_blocks, 2, num_kv_heads, block_size, head_size)

    def zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        if device.type == "cpu":
            return _untouched_zeros(shape, dtype)
        return torch.zeros(shape, dtype=dtype, device=device)

    return [
        LayerKV(zeros(shape, dtype), zeros(shape[:4], torch.float32) if is_scaled(dtype) else None)
        for _ in range(num_layers)
    ]


def page_bytes(
    num_layers: int, block_size: int, num_kv_heads: int, head_size: int, dtype: torch.dtype
) -> int:
    """Bytes of one block over all layers in the common layout, scales included."""
    scale_bytes = torch.float32.itemsize if is_scaled(dtype) else 0
    head_bytes = head_size * dtype.itemsize + scale_bytes
    return num_layers * 2 * num_kv_heads * block_size * head_bytes


def _untouched_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros that the operating system makes resident at first touch."""
    num_bytes = torch.Size(shape).numel() * dtype.itemsize
    return torch.from_numpy(np.zeros(num_bytes, dtype=np.uint8)).view(dtype).view(shape)
