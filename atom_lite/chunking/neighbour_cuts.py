"""Cuts that differ a little from given ones: where stages differ, plans are improved step by step.

Rules with few numbers (a level target, a lean) find plans near the best where chunks are many; of
few chunks of whole tiles each tile counts. The changes, each of which may help where none of the
others does: a tile from one chunk to another near it, a chunk cut in two, and a few chunks in a row
cut anew into one more or one less.

Pure; runs in the head process, off the thread that feeds a stage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atom_lite.chunking.planner import PlanLimits

NEAR = 2  # chunks away
SHARES = (0.25, 0.5, 0.75)  # of a chunk that is cut in two
WINDOWS = (2, 3, 4)  # chunks in a row that are cut anew


def neighbours(sizes: list[int], limits: PlanLimits) -> Iterator[list[int]]:
    """All of them that keep to the limits; the last chunk keeps what is no whole tile."""
    most, align, floor = limits
    for index, size in enumerate(sizes):
        for other in range(max(0, index - NEAR), min(len(sizes), index + NEAR + 1)):
            if other != index and size - align >= floor and sizes[other] + align <= most:
                changed = list(sizes)
                changed[index] -= align
                changed[other] += align
                yield changed
    for index, size in enumerate(sizes):
        for share in SHARES:
            first = max(int(share * size) // align * align, floor)
            if size - first >= floor:
                yield [*sizes[:index], first, size - first, *sizes[index + 1 :]]
    for width in WINDOWS:
        for begin in range(len(sizes) - width + 1):
            for parts in (width - 1, width + 1):
                yield from _cut_anew(sizes, begin, width, parts, limits)


def _cut_anew(
    sizes: list[int], begin: int, width: int, parts: int, limits: PlanLimits
) -> Iterator[list[int]]:
    """The chunks of a window in so many parts of about one size: smaller ones first, then last."""
    most, align, floor = limits
    total = sum(sizes[begin : begin + width])
    for rounded_up in (0, align - 1):
        left, cut = total, []
        for rest in range(parts, 1, -1):
            cut.append((left // rest + rounded_up) // align * align)
            left -= cut[-1]
        cut.append(left)
        if min(cut) >= floor and max(cut) <= most:
            yield [*sizes[:begin], *cut, *sizes[begin + width :]]
