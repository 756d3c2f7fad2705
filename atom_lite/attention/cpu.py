"""The CPU backend: gathered pages and row-blocked attention that skips the causal half.

Runs in the engine process on any CPU, without a compiler; with one, float32 queries go through
kernels that read the pages in place, in whatever type they hold (`atom_lite_kernels.cpu`).
Otherwise pages are copied out of the cache in the order that a matmul wants (cheap: one layer's
share stays in the processor's cache), in the queries' type, and the rows of a query group are
folded together, so that each KV head is read once for all its query heads.

Decodes are grouped by length, padded, and run as one batched matmul per group. A prefill chunk runs
in blocks of rows; each block sees only the keys up to its own last row. What a block does inside
depends on the type, as measured (one layer of 9 query and 3 KV heads of 64, two threads):

    chunk 512, prefix 0 / 4000     float32, Zen 3      bfloat16, Zen 5 (AVX512-BF16)
    matmul, softmax, matmul        8.7 / 57 ms         2.7 / 22 ms
    torch's fused kernel           5.7 / 47 ms         7.2 / 65 ms (whole rectangle)

Legend: T tokens of the step, N KV blocks, S slots of a block, Hq / Hk query / KV heads, G query
heads of a KV head, D head size, W keys that a group or chunk gathers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from atom_lite.attention.cpu_plan import (
    ChunkPlan,
    DecodeGroup,
    PreparedStep,
    RowBlock,
    StepLayout,
    StepPlan,
)
from atom_lite.attention.protocol import (
    AttentionMetadata,
    allocate_pages,
    page_bytes,
)
from atom_lite_kernels.paged_kv import LayerKV, as_numbers, as_stored

if TYPE_CHECKING:
    from atom_lite_kernels.cpu.attention import AttentionKernels


class CpuBackend:
    """Attention for CPUs: stock torch, or compiled kernels where there are any.

    Args:
        kernels: serve float32 queries, pages in place; None gathers the pages for torch.
    """

    name = "cpu"
    allocate_kv = staticmethod(allocate_pages)
    kv_bytes_per_block = staticmethod(page_bytes)

    def __init__(self, kernels: AttentionKernels | None = None) -> None:
        self._kernels = kernels

    def prepare(self, metadata: AttentionMetadata) -> PreparedStep:
        """Keep the metadata; plans are made at first use, as they depend on the layer's window."""
        return PreparedStep(metadata)

    def plan_decodes(self, prepared: PreparedStep, kv: LayerKV) -> StepPlan | None:
        """The step for the kernels, if they serve float32 queries here and all rows are decodes."""
        if self._kernels is None or not self._kernels.serve(torch.float32, kv):
            return None
        plan = prepared.plan(StepLayout.of(kv.pages, torch.float32), None, gathers=False)
        return None if plan.chunk_rows else plan

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        kv: LayerKV,
        prepared: PreparedStep,
        *,
        scale: float,
        sliding_window: int | None,
    ) -> Tensor:
        """Store k and v [T, Hk, D], then attend with q [T, Hq, D]."""
        kernels = self._kernels
        if kernels is not None and not kernels.serve(q.dtype, kv):
            kernels = None
        layout = StepLayout.of(kv.pages, q.dtype)
        plan = prepared.plan(layout, sliding_window, gathers=kernels is None)
        out = torch.empty(q.shape, dtype=q.dtype)
        if kernels is not None:
            kernels.store(kv, k, v, prepared.slot_mapping)
            _attend_in_place(kernels, q, kv, plan, out, scale, sliding_window)
            return out
        _store(k, v, kv, plan)
        if plan.decodes:
            scaled = q[: plan.num_decodes] * scale
            for group in plan.decodes:
                _attend_decodes(scaled, kv, group, out)
        for chunk in plan.chunks:
            _attend_chunk(q, kv, chunk, scale, out)
        return out


def _attend_in_place(
    kernels: AttentionKernels,
    q: Tensor,
    kv: LayerKV,
    plan: StepPlan,
    out: Tensor,
    scale: float,
    sliding_window: int | None,
) -> None:
    """All rows of a step through the compiled kernels, see `CpuBackend.attend`."""
    if plan.num_decodes:
        kernels.decode(
            q[: plan.num_decodes],
            kv,
            plan.decode_tables,
            plan.decode_contexts,
            out[: plan.num_decodes],
            scale=scale,
            sliding_window=sliding_window,
        )
    for rows in plan.chunk_rows:
        kernels.prefill.attend(
            q[rows.first : rows.last],
            kv,
            rows.block_table,
            rows.prefix_tokens,
            out[rows.first : rows.last],
            scale=scale,
            sliding_window=sliding_window,
        )


def _store(k: Tensor, v: Tensor, kv: LayerKV, plan: StepPlan) -> None:
    """Write keys and values [T, Hk, D] into their slots."""
    head_size = kv.pages.shape[4]
    slots = _raw(kv.pages).view(-1, head_size)
    for given, targets in ((k, plan.key_slots), (v, plan.value_slots)):
        stored, scales = as_stored(given, kv.pages.dtype)
        slots.index_copy_(0, targets, _raw(stored).reshape(-1, head_size))
        if kv.scales is not None and scales is not None:
            kv.scales.view(-1).index_copy_(0, targets, scales.flatten())


def _gather(
    kv: LayerKV, page_rows: Tensor, num_batches: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Copy keys and values, each [num_batches, W, D] in `dtype`, out of the pages."""
    _, _, _, block_size, head_size = kv.pages.shape
    rows = _raw(kv.pages).view(-1, block_size * head_size).index_select(0, page_rows)
    stored = rows.view(kv.pages.dtype).view(2, num_batches, -1, head_size)
    scales = None
    if kv.scales is not None:
        taken = kv.scales.view(-1, block_size).index_select(0, page_rows)
        scales = taken.view(2, num_batches, -1)
    gathered = as_numbers(stored, scales, dtype)
    return gathered[0], gathered[1]


def _raw(numbers: Tensor) -> Tensor:
    """The same memory in a type that torch copies by index: it does not know 8-bit floats there."""
    return numbers.view(torch.uint8) if numbers.dtype.itemsize == 1 else numbers


def _hide(scores: Tensor, mask: Tensor) -> None:
    """Make scores -inf where the mask is; elsewhere it is 0.

    Adding is twice as fast, but a score of float16 may have overflowed, and inf - inf is NaN.
    """
    if scores.dtype == torch.float16:
        scores.masked_fill_(mask != 0, float("-inf"))
    else:
        scores.add_(mask)


def _attend_decodes(q: Tensor, kv: LayerKV, group: DecodeGroup, out: Tensor) -> None:
    """Attend with the rows of one group; q [decodes, Hq, D] is scaled, `out` is written."""
    num_rows, num_kv_heads = group.num_rows, kv.pages.shape[2]
    keys, values = _gather(kv, group.page_rows, num_kv_heads * num_rows, q.dtype)
    query = q if group.rows is None else q.index_select(0, group.rows)
    folded = query.view(num_rows, num_kv_heads, -1, q.shape[2]).transpose(0, 1)  # [Hk, rows, G, D]
    scores = torch.bmm(folded.flatten(0, 1), keys.transpose(1, 2))  # [Hk * rows, G, W]
    _hide(scores.view(num_kv_heads, num_rows, -1, scores.shape[2]), group.mask)
    weighted = torch.bmm(scores.softmax(dim=-1), values)  # [Hk * rows, G, D]
    result = weighted.view(num_kv_heads, num_rows, -1, q.shape[2]).transpose(0, 1)
    if group.rows is None:
        out[:num_rows].view(result.shape).copy_(result)
    else:
        out.index_copy_(0, group.rows, result.reshape(num_rows, -1, q.shape[2]))


def _attend_chunk(q: Tensor, kv: LayerKV, chunk: ChunkPlan, scale: float, out: Tensor) -> None:
    """Attend with one prefill chunk, block of rows by block of rows."""
    keys, values = _gather(kv, chunk.page_rows, kv.pages.shape[2], q.dtype)  # [Hk, W, D]
    attend_block = _fused_block if q.dtype == torch.float32 else _matmul_block
    for block in chunk.blocks:
        num_rows = block.last - block.first
        query = q[block.first : block.last].view(num_rows, keys.shape[0], -1, q.shape[2])
        visible = slice(block.first_key, block.last_key)
        result = attend_block(query, keys[:, visible], values[:, visible], block, scale)
        out[block.first : block.last].view(query.shape).copy_(result)


def _fused_block(
    query: Tensor, keys: Tensor, values: Tensor, block: RowBlock, scale: float
) -> Tensor:
    """Use torch's fused kernel for the rows [x, Hk, G, D] of one block.

    KV heads take the place of the batch, and each is expanded (not copied) to its query heads.
    """
    group = query.shape[2]
    result = torch.nn.functional.scaled_dot_product_attention(
        query.permute(1, 2, 0, 3),
        keys.unsqueeze(1).expand(-1, group, -1, -1),
        values.unsqueeze(1).expand(-1, group, -1, -1),
        attn_mask=block.mask,
        scale=scale,
    )
    return result.permute(2, 0, 1, 3)


def _matmul_block(
    query: Tensor, keys: Tensor, values: Tensor, block: RowBlock, scale: float
) -> Tensor:
    """Multiply, softmax, multiply for the rows [x, Hk, G, D] of one block."""
    num_rows, num_kv_heads, group, head_size = query.shape
    folded = (query * scale).transpose(0, 1).reshape(num_kv_heads, -1, head_size)
    scores = torch.bmm(folded, keys.transpose(1, 2)).view(num_kv_heads, num_rows, group, -1)
    # only the columns from `masked_from` on can be hidden from some row
    _hide(scores[..., block.masked_from :], block.mask[:, None, block.masked_from :])
    weighted = torch.bmm(scores.softmax(dim=-1).flatten(1, 2), values)
    return weighted.view(num_kv_heads, num_rows, group, head_size).transpose(0, 1)
