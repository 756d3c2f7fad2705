"""The stage's mirror of the live sequences, rebuilt from step plans alone.

Why it exists: a plan carries a new sequence in full once and afterwards only differences, so each
stage keeps the token ids and the block table of every live sequence. Both lie in matrices with one
row per sequence, so that the inputs of a whole step are gathered with a few vectorised look-ups:
the Python work of a step grows with its number of plan rows, never with the context length.

Runs on every stage. It decides nothing: no admission, no allocation, no stopping. The matrices are
zero-filled by the kernel on first touch, so resident memory follows use, and an entry past a
sequence's end is either 0 or a stale id, in both cases a valid one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from atom_lite.messages import SamplingParams
from atom_lite.worker.sequence_shaping import SequenceShaping

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atom_lite.messages import SequenceStart, StepPlan, StepRow


@dataclass(slots=True)
class MirroredSequence:
    """What a stage knows of one live sequence.

    `row` is its row in the table's matrices, `num_tokens` and `num_blocks` how much of that row is
    filled. `shaping` is kept here for the last stage's sampler.
    """

    sequence_id: int
    epoch: int
    row: int
    num_prompt_tokens: int
    sampling: SamplingParams
    script: list[int] | None
    num_tokens: int
    num_blocks: int = 0
    shaping: SequenceShaping | None = None


class SequenceTable:
    """All live sequences of a stage, by sequence id.

    Args:
        max_model_len: most tokens of a sequence; the width of the token matrix.
        block_size: tokens of a KV block.
        num_rows: sequences to make room for at first; the matrices double when more are live.
    """

    def __init__(self, *, max_model_len: int, block_size: int, num_rows: int) -> None:
        self.block_size = block_size
        num_blocks = -(-max_model_len // block_size)
        self.tokens: NDArray[np.int32] = np.zeros((num_rows, max_model_len), dtype=np.int32)
        self.blocks: NDArray[np.int32] = np.zeros((num_rows, num_blocks), dtype=np.int32)
        self._free_rows = list(range(num_rows - 1, -1, -1))
        self._sequences: dict[int, MirroredSequence] = {}

    def __len__(self) -> int:
        return len(self._sequences)

    def __getitem__(self, sequence_id: int) -> MirroredSequence:
        return self._sequences[sequence_id]

    def apply(self, plan: StepPlan) -> list[MirroredSequence]:
        """Bring the mirror up to `plan` and return the sequence of each of its rows, in order."""
        for sequence_id, epoch in plan.drops:
            self._drop(sequence_id, epoch)
        for start in plan.starts:
            self._start(start)
        return [self._extend(row) for row in plan.rows]

    def token_ids(self, sequence: MirroredSequence) -> NDArray[np.int32]:
        """The tokens of a live sequence so far, prompt and output; not a copy."""
        return self.tokens[sequence.row, : sequence.num_tokens]

    def _drop(self, sequence_id: int, epoch: int) -> None:
        """Forget a sequence; one that never started, or has a newer epoch by now, is left alone."""
        sequence = self._sequences.get(sequence_id)
        if sequence is not None and sequence.epoch == epoch:
            del self._sequences[sequence_id]
            self._free_rows.append(sequence.row)

    def _start(self, start: SequenceStart) -> None:
        """Take a sequence in; a newer epoch replaces the older one of the same sequence."""
        known = self._sequences.get(start.sequence_id)
        if known is not None:
            assert known.epoch < start.epoch, (start.sequence_id, known.epoch, start.epoch)
            self._drop(start.sequence_id, known.epoch)
        if not self._free_rows:
            self._double_rows()
        row = self._free_rows.pop()
        num_tokens = len(start.token_ids)
        self.tokens[row, :num_tokens] = start.token_ids
        self._sequences[start.sequence_id] = MirroredSequence(
            sequence_id=start.sequence_id,
            epoch=start.epoch,
            row=row,
            num_prompt_tokens=start.num_prompt_tokens,
            sampling=start.sampling,
            script=start.script,
            num_tokens=num_tokens,
        )

    def _extend(self, row: StepRow) -> MirroredSequence:
        """Add what a plan row brings: blocks, and for a decode the token sampled last."""
        sequence = self._sequences[row.sequence_id]
        assert sequence.epoch == row.epoch, (row.sequence_id, sequence.epoch, row.epoch)
        if row.new_block_ids:
            num_blocks = sequence.num_blocks + len(row.new_block_ids)
            self.blocks[sequence.row, sequence.num_blocks : num_blocks] = row.new_block_ids
            sequence.num_blocks = num_blocks
        end = row.start + row.num_tokens
        if row.token_ids:
            assert len(row.token_ids) == row.num_tokens, (row.sequence_id, row.num_tokens)
            self.tokens[sequence.row, row.start : end] = row.token_ids
            sequence.num_tokens = max(sequence.num_tokens, end)
        assert end <= sequence.num_tokens, (row.sequence_id, end, sequence.num_tokens)
        assert end <= sequence.num_blocks * self.block_size, (row.sequence_id, end)
        return sequence

    def _double_rows(self) -> None:
        """Make room for as many sequences again (live ones keep their rows)."""
        num_rows = len(self.tokens)
        self.tokens = _with_twice_the_rows(self.tokens)
        self.blocks = _with_twice_the_rows(self.blocks)
        self._free_rows.extend(range(2 * num_rows - 1, num_rows - 1, -1))


def _with_twice_the_rows(matrix: NDArray[np.int32]) -> NDArray[np.int32]:
    """A copy with as many zero rows appended; those stay untouched, so they take no memory yet."""
    num_rows, width = matrix.shape
    grown = np.zeros((2 * num_rows, width), dtype=np.int32)
    grown[:num_rows] = matrix
    return grown
