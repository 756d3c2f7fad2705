"""A step plan plus the mirror -> the tensors that the model call takes.

Runs on every stage, once per step, before the layers. All per-token work is vectorised over the
whole step (64 decodes: about 110 us), so neither the context lengths nor the chunk sizes show in
Python's time. It reads the mirror and changes nothing.

Shapes: T tokens of the step, B rows (sequences), R rows that draw a token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from atom_lite.attention.protocol import AttentionMetadata
from atom_lite.worker.sequence_table import MirroredSequence

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atom_lite.messages import StepPlan
    from atom_lite.worker.sequence_table import SequenceTable


@dataclass(frozen=True, slots=True)
class SampledRow:
    """A row that draws a token: its sequence, and how many output tokens that has by now."""

    sequence: MirroredSequence
    output_index: int


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What a step feeds the model, and which of its T hidden states become logits."""

    token_ids: Tensor  # [T] int64
    positions: Tensor  # [T] int64
    metadata: AttentionMetadata
    logits_rows: Tensor  # [R] int64, indices into T
    sampled: list[SampledRow]  # R


def build_inputs(
    plan: StepPlan,
    sequences: list[MirroredSequence],
    table: SequenceTable,
    device: torch.device,
) -> StepInputs:
    """Build the inputs of `plan`, whose rows belong to `sequences` (see SequenceTable.apply)."""
    query_lens = [row.num_tokens for row in plan.rows]
    context_lens = [row.start + row.num_tokens for row in plan.rows]
    table_rows = np.array([sequence.row for sequence in sequences])
    counts = np.array(query_lens)
    ends = counts.cumsum()  # of each row's tokens among the T
    # Token t of the step, in row r, stands at position context[r] - ends[r] + t.
    positions = np.arange(ends[-1]) + np.repeat(np.array(context_lens) - ends, counts)
    row_of_token = np.repeat(table_rows, counts)
    most_blocks = -(-max(context_lens) // table.block_size)
    metadata = AttentionMetadata(
        query_lens=query_lens,
        context_lens=context_lens,
        block_tables=_tensor(table.blocks[table_rows, :most_blocks], device),
        slot_mapping=_tensor(_slots(table, row_of_token, positions), device),
        block_size=table.block_size,
    )
    drawing = [index for index, row in enumerate(plan.rows) if row.sample]
    return StepInputs(
        token_ids=_tensor(table.tokens[row_of_token, positions], device),
        positions=_tensor(positions, device),
        metadata=metadata,
        logits_rows=_tensor(ends[drawing] - 1, device),
        sampled=[
            SampledRow(sequences[index], context_lens[index] - sequences[index].num_prompt_tokens)
            for index in drawing
        ],
    )


def _slots(
    table: SequenceTable, row_of_token: NDArray[np.int64], positions: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Where in the pool each token's keys and values go, [T]: block id * block size + offset."""
    blocks = table.blocks[row_of_token, positions // table.block_size].astype(np.int64)
    return blocks * table.block_size + positions % table.block_size


def _tensor(array: NDArray[np.integer], device: torch.device) -> Tensor:
    """The array as int64 on the device."""
    return torch.from_numpy(array.astype(np.int64, copy=False)).to(device)
