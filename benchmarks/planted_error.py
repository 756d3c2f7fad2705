"""A bug on demand: prefill chunks that do not see the last tokens of their prefix.

Why it exists: a check of accuracy is worth something only if it fails when the answers are wrong.
Off-by-one errors between chunks are what chunked prefill invites, and they are small: the text
around a chunk's start goes missing, everything else is right.

With `dropped_tokens` 0 it is the backend that it wraps.

Legend: T tokens of the step, x tokens of a chunk, W context tokens that it sees, Hq / Hk query / KV
heads, G query heads of a KV head, D head size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from atom_lite.attention.protocol import AttentionMetadata, Backend, LayerKV


class _Prepared(NamedTuple):
    inner: Any
    metadata: AttentionMetadata


class PrefixDropper:
    """See Backend. Chunks with a prefix of at least `dropped_tokens` are attended wrongly."""

    def __init__(self, inner: Backend) -> None:
        self._inner = inner
        self.name = inner.name
        self.allocate_kv = inner.allocate_kv
        self.kv_bytes_per_block = inner.kv_bytes_per_block
        self.dropped_tokens = 0

    def prepare(self, metadata: AttentionMetadata) -> _Prepared:
        """See Backend."""
        return _Prepared(self._inner.prepare(metadata), metadata)

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        kv: LayerKV,
        prepared: _Prepared,
        *,
        scale: float,
        sliding_window: int | None,
    ) -> Tensor:
        """See Backend."""
        out = self._inner.attend(
            q, k, v, kv, prepared.inner, scale=scale, sliding_window=sliding_window
        )
        if not self.dropped_tokens:
            return out
        assert sliding_window is None, "the planted error knows no sliding windows"
        metadata = prepared.metadata
        end = 0
        for row, query_len in enumerate(metadata.query_lens):
            begin, end = end, end + query_len
            prefix = metadata.context_lens[row] - query_len
            if query_len > 1 and prefix >= self.dropped_tokens:
                out[begin:end] = self._attend_wrongly(q[begin:end], kv, metadata, row, scale)
        return out

    def _attend_wrongly(
        self, q: Tensor, kv: LayerKV, metadata: AttentionMetadata, row: int, scale: float
    ) -> Tensor:
        """Attention of a chunk q [x, Hq, D] over its context without the prefix's last tokens."""
        context, size = metadata.context_lens[row], metadata.block_size
        chunk = q.shape[0]
        prefix = context - chunk
        blocks = metadata.block_tables[row, : -(-context // size)]
        pages = kv.pages[blocks].permute(1, 2, 0, 3, 4).flatten(2, 3)  # [2, Hk, slots, D]
        seen = torch.cat(
            [torch.arange(prefix - self.dropped_tokens), torch.arange(prefix, context)]
        )
        keys, values = pages[:, :, seen]  # [Hk, W, D] each
        queries = q.float().transpose(0, 1).reshape(keys.shape[0], -1, chunk, q.shape[2])
        scores = queries @ keys.float().transpose(1, 2).unsqueeze(1) * scale
        hidden = seen.unsqueeze(0) > torch.arange(prefix, context).unsqueeze(1)
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        mixed: Tensor = weights @ values.float().unsqueeze(1)  # [Hk, G, x, D]
        return mixed.flatten(0, 1).transpose(0, 1).to(q.dtype)
