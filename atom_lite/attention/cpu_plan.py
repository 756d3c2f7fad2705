"""What the CPU backend works out once per step: page indices, groups of decodes, blocks of rows.

Pure index arithmetic on small CPU tensors, kept apart from the arithmetic on the KV cache in `cpu`.
The pages [N, 2, Hk, S, D] are seen as a matrix of rows of S*D numbers, row (block * 2 + which) * Hk
+ head, so that one index_select brings keys and values of a whole group, ordered by (which, head,
sequence, block): head-major, as a batched matmul wants them.

Legend: T tokens of the step, N KV blocks, S slots of a block, Hk KV heads, D head size, W keys that
a group or chunk gathers.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from atom_lite.attention.protocol import AttentionMetadata

# Rows of a prefill block. Larger wastes more of the causal half, smaller loses matmul speed: chunk
# 512 at prefix 0 / 4000 takes 5.0 / 58, 4.8 / 53, 4.0 / 50, 5.1 / 80 ms at 64, 128, 256, 512 rows.
BLOCK_ROWS = 256

# Bytes that a group of decodes gathers: fits a core's share of the last-level cache. 32 decodes of
# 1000 tokens take 7.3, 5.2, 5.9, 7.6 ms with groups of 1.5, 6, 12 and 24 MB; 32 of 300 take 3.1,
# 1.8, 1.7 and 1.8 ms with 0.5, 2, 4 and 8 MB.
GROUP_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class StepLayout:
    """What a plan must know of the cache."""

    num_kv_heads: int
    block_size: int
    head_size: int
    dtype: torch.dtype

    @staticmethod
    def of(pages: Tensor, dtype: torch.dtype) -> StepLayout:
        """Read the layout off the pages of a layer."""
        return StepLayout(pages.shape[2], pages.shape[3], pages.shape[4], dtype)

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's keys and values in one layer."""
        return 2 * self.num_kv_heads * self.head_size * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Decodes of similar length that run as one batched matmul."""

    rows: Tensor | None  # rows of the step; None: all decodes, in order
    num_rows: int
    page_rows: Tensor  # [2 * Hk * rows * blocks]
    mask: Tensor  # [rows, 1, W], 0 or -inf


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Rows [first, last) of the step against gathered keys [first_key, last_key)."""

    first: int
    last: int
    first_key: int
    last_key: int
    mask: Tensor  # [last - first, last_key - first_key], 0 or -inf; a view
    masked_from: int  # column before which nothing is masked


@dataclass(frozen=True, slots=True)
class ChunkRows:
    """One prefill chunk: rows [first, last) of the step, of a sequence with a prefix."""

    first: int
    last: int
    prefix_tokens: int
    block_table: Tensor  # [blocks or more] int64


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """How torch attends with one prefill chunk."""

    page_rows: Tensor  # [2 * Hk * blocks]
    blocks: list[RowBlock]


@dataclass(frozen=True, slots=True)
class StepPlan:
    """All that `attend` needs for layers of one window."""

    key_slots: Tensor  # [T * Hk], rows of D numbers
    value_slots: Tensor
    num_decodes: int  # rows of the step before the first chunk
    decode_tables: Tensor  # [decodes, most blocks] int64
    decode_contexts: Tensor  # [decodes] int64
    decodes: list[DecodeGroup]  # empty where a kernel reads the pages in place
    chunk_rows: list[ChunkRows]
    chunks: list[ChunkPlan]  # empty where a kernel reads the pages in place


class PreparedStep:
    """The plans of one step, one per window that the model's layers use."""

    def __init__(self, metadata: AttentionMetadata) -> None:
        """`metadata` of the step."""
        self.slot_mapping = metadata.slot_mapping
        self._metadata = metadata
        self._plans: dict[int | None, StepPlan] = {}

    def plan(
        self,
        layout: StepLayout,
        window: int | None,
        *,
        gathers: bool = True,
    ) -> StepPlan:
        """Give the plan for layers of this window, made at first use.

        Args:
            layout: of the cache, the same for all layers.
            window: of the layer.
            gathers: whether torch attends; kernels need tables and lengths only.
        """
        plan = self._plans.get(window)
        if plan is None:
            plan = _plan_step(self._metadata, layout, window, gathers=gathers)
            self._plans[window] = plan
        return plan


def _plan_step(
    metadata: AttentionMetadata,
    layout: StepLayout,
    window: int | None,
    *,
    gathers: bool,
) -> StepPlan:
    lens = metadata.query_lens
    num_decodes = next((row for row, length in enumerate(lens) if length > 1), len(lens))
    # Here a row of one token may follow: a chunk that got the last token of the budget.
    rows = range(num_decodes, len(lens))
    starts = [0, *accumulate(lens)]
    heads = torch.arange(layout.num_kv_heads) * layout.block_size
    slots = metadata.slot_mapping
    first_head = slots // layout.block_size * (2 * layout.num_kv_heads * layout.block_size)
    key_slots = ((first_head + slots % layout.block_size)[:, None] + heads).flatten()
    decodes = _plan_decodes(metadata, layout, window, num_decodes) if gathers else []
    return StepPlan(
        key_slots=key_slots,
        value_slots=key_slots + layout.num_kv_heads * layout.block_size,
        num_decodes=num_decodes,
        decode_tables=metadata.block_tables[:num_decodes],
        decode_contexts=torch.tensor(metadata.context_lens[:num_decodes]),
        decodes=decodes,
        chunk_rows=[
            ChunkRows(
                first=starts[row],
                last=starts[row + 1],
                prefix_tokens=metadata.context_lens[row] - lens[row],
                block_table=metadata.block_tables[row],
            )
            for row in rows
        ],
        chunks=_plan_chunks(metadata, layout, window, rows) if gathers else [],
    )


def _page_rows(blocks: Tensor, num_kv_heads: int) -> Tensor:
    """Rows of the page matrix for block ids [rows, blocks], ordered (which, head, row, block)."""
    which_and_head = torch.arange(2 * num_kv_heads).view(-1, 1, 1)
    return (blocks * (2 * num_kv_heads) + which_and_head).flatten()


# ---------------------------------------------------------------- decodes


def _plan_decodes(
    metadata: AttentionMetadata, layout: StepLayout, window: int | None, num_decodes: int
) -> list[DecodeGroup]:
    """Group the decodes so that little is padded and a group's keys stay in cache."""
    if num_decodes == 0:
        return []
    size = layout.block_size
    contexts = metadata.context_lens[:num_decodes]
    first_blocks = [0 if window is None else max(0, c - window) // size for c in contexts]
    widths = [-(-c // size) - f for c, f in zip(contexts, first_blocks, strict=True)]
    groups = _group_by_width(widths, max(1, GROUP_BYTES // (layout.token_bytes * size)))
    return [
        _plan_group(
            metadata,
            layout,
            window,
            rows=None if len(groups) == 1 else torch.tensor(group),
            first_blocks=torch.tensor([first_blocks[row] for row in group]),
            width=max(widths[row] for row in group),
        )
        for group in groups
    ]


def _group_by_width(widths: list[int], most_blocks: int) -> list[list[int]]:
    """Split rows into groups whose padded width holds at most `most_blocks` blocks.

    Rows go from the longest to the shortest; a single group keeps them in order.
    """
    if len(widths) * max(widths) <= most_blocks:
        return [list(range(len(widths)))]
    groups: list[list[int]] = []
    for row in sorted(range(len(widths)), key=lambda row: -widths[row]):
        if groups and widths[groups[-1][0]] * (len(groups[-1]) + 1) <= most_blocks:
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


def _plan_group(
    metadata: AttentionMetadata,
    layout: StepLayout,
    window: int | None,
    *,
    rows: Tensor | None,
    first_blocks: Tensor,
    width: int,
) -> DecodeGroup:
    num_rows = len(first_blocks)
    index = torch.arange(num_rows) if rows is None else rows
    columns = first_blocks[:, None] + torch.arange(width)
    # a row shorter than the group reads some block again; the mask hides it
    columns.clamp_(max=metadata.block_tables.shape[1] - 1)
    blocks = metadata.block_tables[index[:, None], columns]
    context = torch.tensor(metadata.context_lens)[index][:, None]
    position = first_blocks[:, None] * layout.block_size + torch.arange(width * layout.block_size)
    hidden = position >= context
    if window is not None:
        hidden |= position < context - window
    mask = torch.zeros(hidden.shape, dtype=layout.dtype).masked_fill_(hidden, float("-inf"))
    return DecodeGroup(
        rows=rows,
        num_rows=num_rows,
        page_rows=_page_rows(blocks, layout.num_kv_heads),
        mask=mask.unsqueeze(1),
    )


# ---------------------------------------------------------------- prefill chunks


def _plan_chunks(
    metadata: AttentionMetadata, layout: StepLayout, window: int | None, rows: range
) -> list[ChunkPlan]:
    if not rows:
        return []
    starts = [0, *accumulate(metadata.query_lens)]
    strip = _mask_strip(metadata, layout, window, rows)
    return [_plan_chunk(metadata, layout, window, row, starts[row], strip) for row in rows]


def _mask_strip(
    metadata: AttentionMetadata, layout: StepLayout, window: int | None, chunk_rows: range
) -> Tensor:
    """One mask whose slices serve every block of rows of the chunks, [BLOCK_ROWS, widest context].

    Its last column is the last row's own key: the block's rows and keys are cut from the lower
    right corner, where the causal edge (and a window's edge) is a diagonal of the strip.
    """
    rows = min(BLOCK_ROWS, max(metadata.query_lens[row] for row in chunk_rows))
    width = max(metadata.context_lens[row] for row in chunk_rows)
    if window is not None:  # a block never sees more keys than this
        width = min(width, window + rows + layout.block_size)
    own_key = torch.arange(width - rows, width)[:, None]
    key = torch.arange(width)[None, :]
    hidden = key > own_key
    if window is not None:
        hidden |= key <= own_key - window
    return torch.zeros(hidden.shape, dtype=layout.dtype).masked_fill_(hidden, float("-inf"))


def _plan_chunk(
    metadata: AttentionMetadata,
    layout: StepLayout,
    window: int | None,
    row: int,
    start: int,
    strip: Tensor,
) -> ChunkPlan:
    """Plan the chunk of step row `row`, whose tokens begin at `start` of the step."""
    length, context = metadata.query_lens[row], metadata.context_lens[row]
    prefix = context - length
    first_block = 0 if window is None else max(0, prefix + 1 - window) // layout.block_size
    blocks = metadata.block_tables[row, first_block : -(-context // layout.block_size)]
    gathered_from = first_block * layout.block_size
    planned = []
    for first in range(0, length, BLOCK_ROWS):
        last = min(length, first + BLOCK_ROWS)
        lowest = 0 if window is None else max(0, prefix + first + 1 - window)
        num_keys = prefix + last - lowest
        planned.append(
            RowBlock(
                first=start + first,
                last=start + last,
                first_key=lowest - gathered_from,
                last_key=prefix + last - gathered_from,
                mask=strip[strip.shape[0] - (last - first) :, strip.shape[1] - num_keys :],
                masked_from=0 if window is not None else num_keys - (last - first),
            )
        )
    return ChunkPlan(_page_rows(blocks[None], layout.num_kv_heads), planned)
