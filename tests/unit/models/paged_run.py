"""Run a decoder over sequences step by step, on pages in shuffled order: a scheduler for tests."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from atom_lite.attention.protocol import AttentionMetadata

if TYPE_CHECKING:
    from atom_lite.attention.protocol import Backend
    from atom_lite.models.decoder import Decoder
    from atom_lite.models.spec import ModelSpec

BLOCK_SIZE = 4


@dataclass
class Sequence:
    token_ids: list[int]
    blocks: list[int]
    computed: int = 0
    logits: list[torch.Tensor] = field(default_factory=list)

    def all_logits(self) -> torch.Tensor:
        return torch.cat(self.logits)


class PagedRun:
    """Sequences in one KV cache; `step` computes the next tokens of some of them."""

    def __init__(
        self,
        decoder: Decoder,
        spec: ModelSpec,
        backend: Backend,
        prompts: list[list[int]],
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._decoder = decoder
        needed = [-(-len(prompt) // BLOCK_SIZE) for prompt in prompts]
        num_blocks = sum(needed) + 3
        pool = list(range(num_blocks))
        random.Random(0).shuffle(pool)
        self.sequences = [
            Sequence(prompt, [pool.pop() for _ in range(count)])
            for prompt, count in zip(prompts, needed, strict=True)
        ]
        self._kv = backend.allocate_kv(
            spec.num_layers,
            num_blocks,
            BLOCK_SIZE,
            spec.num_kv_heads,
            spec.head_size,
            dtype,
            torch.device("cpu"),
        )

    def step(self, rows: list[tuple[int, int]]) -> None:
        """Compute `count` tokens of sequence `index` for each (index, count), as one step."""
        chunks = []
        for index, count in rows:
            sequence = self.sequences[index]
            chunks.append((sequence, sequence.computed, count))
            sequence.computed += count
        metadata = AttentionMetadata.build(
            [count for _, _, count in chunks],
            [start + count for _, start, count in chunks],
            [sequence.blocks for sequence, _, _ in chunks],
            BLOCK_SIZE,
        )
        ids = [i for s, start, count in chunks for i in s.token_ids[start : start + count]]
        positions = [p for _, start, count in chunks for p in range(start, start + count)]
        hidden = self._decoder.forward(
            torch.tensor(ids), torch.tensor(positions), self._kv, metadata
        )
        logits = self._decoder.logits(hidden)
        for (sequence, _, _), part in zip(
            chunks, logits.split([count for _, _, count in chunks]), strict=True
        ):
            sequence.logits.append(part)
