"""From a target latency to the chunks of a prompt.

A plan is not a list of cuts but the rule that makes them: a target, how it leans along the prompt,
and the size of the last chunk. So a plan survives what serving does to it (a step with little
budget left, a prompt that is resumed): the next size is always the rule applied to where the prompt
is now. Pure; runs in the head process.
"""

from __future__ import annotations

from itertools import accumulate, islice
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from atom_lite.chunking.latency_model import LatencyModel
    from atom_lite.chunking.planner import PlanLimits


class Span(NamedTuple):
    """The tokens that are to be cut: from the prefix-cache hit to the prompt's end."""

    start: int
    end: int

    @property
    def tokens(self) -> int:
        """How many there are."""
        return self.end - self.start


class Target(NamedTuple):
    """The rule that makes a plan's cuts.

    Attributes:
        seconds: latency of a chunk in the middle of the prompt.
        lean: how the target moves along the prompt, `seconds * (1 + lean*(share - 1/2))`; 0 for
            equal stages.
        last_tokens: size of a last chunk made small on purpose, 0 for none.
        most_tokens: a bound on every chunk, 0 for none; with a high target, fixed chunks.
    """

    seconds: float
    lean: float = 0.0
    last_tokens: int = 0
    most_tokens: int = 0


def next_size(
    model: LatencyModel, span: Span, position: int, target: Target, limits: PlanLimits
) -> int:
    """The chunk at `position`: the largest aligned one within the target, and no tiny tail."""
    return next(_sizes(model, span, position, target, limits))


def settle_tail(size: int, remaining: int, limits: PlanLimits) -> int:
    """The wished size, changed where what it leaves over would be a tiny tail."""
    if remaining < 2 * limits.floor or remaining <= size:
        return remaining
    if 2 * (remaining - size) >= max(size, 2 * limits.floor):
        return size
    # Two halves, not a chunk and its tail: no higher peak, and a shorter last prefix.
    align = limits.align
    half = -(-remaining // (2 * align)) * align
    return min(half, (remaining - limits.floor) // align * align)


def cut(
    model: LatencyModel, span: Span, target: Target, limits: PlanLimits, at_most: int | None = None
) -> list[int] | None:
    """All chunk sizes of the span, or None where they would be more than `at_most`."""
    sizes = list(islice(_sizes(model, span, span.start, target, limits), at_most))
    return sizes if sum(sizes) == span.tokens else None


def chunk_times(model: LatencyModel, span: Span, sizes: Sequence[int]) -> list[float]:
    """Seconds of each chunk on the model's stage."""
    # Unrolled from model.chunk_seconds: a search calls this a hundred thousand times.
    constant = model.constant_seconds
    per_prefix = model.prefix_seconds_per_token
    linear = model.linear_seconds_per_token
    attention = model.attention_seconds_per_area
    starts = accumulate(sizes, initial=span.start)
    return [
        constant + per_prefix * start + (linear + attention * (2 * start + size)) * size
        for start, size in zip(starts, sizes, strict=False)
    ]


def _sizes(
    model: LatencyModel, span: Span, position: int, target: Target, limits: PlanLimits
) -> Iterator[int]:
    """Chunk sizes from `position` to the span's end."""
    align, floor = limits.align, limits.floor
    most = min(target.most_tokens or limits.most, limits.most)
    level, lean = target.seconds, target.lean
    constant, per_prefix = model.constant_seconds, model.prefix_seconds_per_token
    end = span.end - target.last_tokens
    if position >= end:
        end = span.end
    while position < end:
        seconds = level
        if lean:
            seconds *= 1.0 + lean * ((position - span.start) / span.tokens - 0.5)
        wished = model.tokens_within(position, seconds - constant - per_prefix * position)
        size = most if wished >= most else max(int(wished) // align * align, floor)
        size = settle_tail(size, end - position, limits)
        yield size
        position += size
        if position == end:
            end = span.end
