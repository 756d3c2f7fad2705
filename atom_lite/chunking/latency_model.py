"""How long a step takes on one stage, as a frozen formula that can be solved for the chunk size.

    t = c + sum over chunks [ gamma*L + b*x + a*(2*L*x + x^2) ] + d0*D + d1*K

L prefix tokens and x new tokens of a prefill chunk; D decode rows, K sum of their context lengths.
The one model serves both targets of the scheduler: the pipeline target asks for the largest x whose
prefill part fits, the deadline target for the largest x whose whole step fits.

Pure arithmetic; runs in the head process. Source: ATOM's Dynamic CPP (a, b, c, gamma), extended by
the decode terms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

MILLISECONDS_PER_SECOND = 1000.0


class Chunk(NamedTuple):
    """One prefill chunk: `new_tokens` computed after `prefix_tokens` that have their KV."""

    prefix_tokens: int
    new_tokens: int

    @property
    def area(self) -> float:
        """Attention work: every new token reads the prefix, and the new ones before it (twice)."""
        return attention_area(self.prefix_tokens, self.new_tokens)


def attention_area(prefix_tokens: float, new_tokens: float) -> float:
    """`2*L*x + x^2`; it telescopes, so its sum over a prompt's chunks is N^2 for any cut."""
    return 2.0 * prefix_tokens * new_tokens + new_tokens * new_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyModel:
    """Seconds of a step on one stage. All terms are finite and at least 0.

    Attributes:
        constant_seconds: c, paid once per step.
        prefix_seconds_per_token: gamma, paid per prefix token of each chunk (KV rebuild).
        linear_seconds_per_token: b, paid per new token.
        attention_seconds_per_area: a, paid per unit of `2*L*x + x^2`.
        decode_row_seconds: d0, paid per decode row.
        decode_context_seconds_per_token: d1, paid per context token of the decode rows.

    Raises:
        ValueError: a term is negative or not finite.
    """

    constant_seconds: float
    prefix_seconds_per_token: float
    linear_seconds_per_token: float
    attention_seconds_per_area: float
    decode_row_seconds: float = 0.0
    decode_context_seconds_per_token: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not math.isfinite(value) or value < 0.0:
                raise ValueError(
                    f"{field.name} of a latency model is {value!r}, must be finite and at least 0"
                )

    @classmethod
    def from_milliseconds(cls, *, a: float, b: float, c: float, gamma: float = 0.0) -> LatencyModel:
        """The model from ATOM's letters, which are in milliseconds."""
        return cls(
            constant_seconds=c / MILLISECONDS_PER_SECOND,
            prefix_seconds_per_token=gamma / MILLISECONDS_PER_SECOND,
            linear_seconds_per_token=b / MILLISECONDS_PER_SECOND,
            attention_seconds_per_area=a / MILLISECONDS_PER_SECOND,
        )

    def without_decodes(self) -> LatencyModel:
        """The prefill part alone: all that a prompt's plan depends on."""
        return replace(self, decode_row_seconds=0.0, decode_context_seconds_per_token=0.0)

    def with_decodes(self, row_seconds: float, context_seconds_per_token: float) -> LatencyModel:
        """The same prefill part with other decode terms."""
        return replace(
            self,
            decode_row_seconds=row_seconds,
            decode_context_seconds_per_token=context_seconds_per_token,
        )

    def describe(self) -> str:
        """ATOM's letters in milliseconds, as its log lines print them."""
        return (
            f"a={self.attention_seconds_per_area * MILLISECONDS_PER_SECOND:.3e} "
            f"b={self.linear_seconds_per_token * MILLISECONDS_PER_SECOND:.3e} "
            f"c={self.constant_seconds * MILLISECONDS_PER_SECOND:.3e} "
            f"gamma={self.prefix_seconds_per_token * MILLISECONDS_PER_SECOND:.3e}"
        )

    def predict(
        self,
        chunks: Iterable[Chunk],
        *,
        decode_rows: int = 0,
        decode_context_tokens: int = 0,
    ) -> float:
        """Seconds of a step with these chunks and decode rows."""
        seconds = self._fixed_part(decode_rows, decode_context_tokens)
        for prefix, new in chunks:
            seconds += self._chunk_part(prefix, new)
        return seconds

    def chunk_seconds(self, prefix_tokens: float, new_tokens: float) -> float:
        """Seconds of a step that holds this one chunk and nothing else: `t(L, x)`."""
        return self.constant_seconds + self._chunk_part(prefix_tokens, new_tokens)

    def largest_chunk(
        self,
        prefix_tokens: float,
        target_seconds: float,
        *,
        decode_rows: int = 0,
        decode_context_tokens: int = 0,
    ) -> float:
        """The x with which a step of this one chunk and these decodes takes `target_seconds`.

        Returns:
            0.0 where even an empty chunk takes longer, infinity where new tokens cost nothing.
        """
        fixed = self._fixed_part(decode_rows, decode_context_tokens)
        room = target_seconds - fixed - self.prefix_seconds_per_token * prefix_tokens
        return self.tokens_within(prefix_tokens, room)

    def tokens_within(self, prefix_tokens: float, room_seconds: float) -> float:
        """The x with `b*x + a*(2*L*x + x^2) == room_seconds`: what new tokens alone may cost.

        Not the textbook formula, which subtracts two nearly equal numbers where the prefix dwarfs
        the chunk, and divides by a.
        """
        if room_seconds <= 0.0:
            return 0.0
        if room_seconds == math.inf:
            return math.inf
        a = self.attention_seconds_per_area
        slope = 2.0 * a * prefix_tokens + self.linear_seconds_per_token
        divisor = slope + math.sqrt(slope * slope + 4.0 * a * room_seconds)
        return 2.0 * room_seconds / divisor if divisor > 0.0 else math.inf

    def _fixed_part(self, decode_rows: int, decode_context_tokens: int) -> float:
        return (
            self.constant_seconds
            + self.decode_row_seconds * decode_rows
            + self.decode_context_seconds_per_token * decode_context_tokens
        )

    def _chunk_part(self, prefix: float, new: float) -> float:
        return (
            self.prefix_seconds_per_token * prefix
            + self.linear_seconds_per_token * new
            + self.attention_seconds_per_area * attention_area(prefix, new)
        )
