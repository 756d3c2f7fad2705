"""Which shapes are tried to learn the model: at startup, and from the first requests.

ATOM's startup grid has no prefix and sees b only; ours (`prefix_sweep_shapes`) attends to a real
prefix and so sees all terms. `Alternation` gives the first prompts two widely
separated chunk sizes. Pure; the engine runs the forwards. Head process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from atom_lite.chunking.latency_model import Chunk

if TYPE_CHECKING:
    from collections.abc import Sequence

GRID_POINTS = 24
GRID_RATIO = 8
TIMED_FORWARDS = 2  # per size; the better one counts
SWEEP_BASES = (1, 4, 2)  # chunk sizes, as multiples of the smallest
SWEEP_PREFIXES = (0, 4, 16, 8)  # prefixes, as multiples of the smallest chunk


def atom_max_chunk(max_num_batched_tokens: int, max_model_len: int | None, align: int) -> int:
    """The largest size of ATOM's grid; from flags only, so it is the same on every stage."""
    most = max_num_batched_tokens
    if max_model_len:
        most = min(most, max_model_len)
    return most // align * align


def atom_startup_sizes(align: int, max_chunk: int) -> list[int]:
    """ATOM's profile grid: 24 sizes from `max_chunk` to an eighth of it, duplicates dropped."""
    lowest = max(align, max_chunk // GRID_RATIO)
    points = np.linspace(max_chunk, lowest, num=GRID_POINTS, dtype=np.int64)
    return list(dict.fromkeys(max(align, int(point) // align * align) for point in points))


def prefix_sweep_shapes(floor: int, most: int, max_model_len: int) -> list[Chunk]:
    """Every prefix with every size, twice, short ones first; what does not fit is left out."""
    shapes = [
        Chunk(floor * prefix, floor * size) for prefix in SWEEP_PREFIXES for size in SWEEP_BASES
    ]
    fitting = [
        shape
        for shape in shapes
        if shape.new_tokens <= most and shape.prefix_tokens + shape.new_tokens < max_model_len
    ]
    return fitting + fitting


class Alternation:
    """Each new prompt gets the next choice in turn and keeps it to its end."""

    MAX_SEQUENCES = 4096

    def __init__(self, choices: Sequence[int]) -> None:
        self._choices = tuple(choices)
        self._given: dict[int, int] = {}
        self._turn = 0

    def choice_for(self, sequence_id: int) -> int:
        """What this prompt was given, or gets now."""
        if sequence_id not in self._given:
            if len(self._given) >= self.MAX_SEQUENCES:
                del self._given[next(iter(self._given))]
            self._given[sequence_id] = self._choices[self._turn % len(self._choices)]
            self._turn += 1
        return self._given[sequence_id]

    def forget(self, sequence_id: int) -> None:
        """The prompt is done; unknown ids are ignored."""
        self._given.pop(sequence_id, None)
