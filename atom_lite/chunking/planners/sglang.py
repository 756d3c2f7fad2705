"""SGLang's rule: equal latency by area and linear cost only, at least a quarter of the base.

For comparison. It has no prefix term and no quality gate, and it leaves tiny tails (192 tokens at a
16K prompt, base 4096, factor 0.65). Pure; runs in the head process.
Source: sgl-project/sglang, scheduler_pp_mixin.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atom_lite.chunking.planner import ChunkDecision, ChunkRequest, Supply

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atom_lite.chunking.latency_model import LatencyModel

CONTEXT_MARGIN_TOKENS = 100
LEAST_ALIGN_TOKENS = 64
LEAST_FRACTION = 4  # of the base chunk: a quarter


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangSettings:
    """`chunked_prefill_size`, page size, context length and SGLang's smooth factor."""

    base_tokens: int
    page_tokens: int
    max_model_len: int
    smooth_factor: float = 0.75

    @property
    def align_tokens(self) -> int:
        """Chunks are multiples of this."""
        return max(self.page_tokens, LEAST_ALIGN_TOKENS)


def sglang_chunk(model: LatencyModel, settings: SglangSettings, prefix_tokens: int) -> int | None:
    """The next chunk after this prefix, or None where the rule has no answer."""
    base = settings.base_tokens
    if prefix_tokens == 0:
        return base
    a = model.attention_seconds_per_area
    b = model.linear_seconds_per_token
    if a <= 0.0:
        return None
    slope = 2 * a * prefix_tokens + b
    target = a * base * base + b * base
    raw = (-slope + math.sqrt(slope * slope + 4 * a * target)) / (2 * a)
    if raw <= 0.0:
        return None
    smoothed = base + settings.smooth_factor * (raw - base)
    align = settings.align_tokens
    tokens = max(int(smoothed), base // LEAST_FRACTION)
    tokens = max(tokens // align * align, align)
    allowed = settings.max_model_len - prefix_tokens - CONTEXT_MARGIN_TOKENS
    tokens = min(tokens, allowed, base) // align * align
    return tokens if tokens >= align else None


class SglangPlanner:
    """SGLang's rule with a model that is fitted once."""

    def __init__(self, settings: SglangSettings, model: LatencyModel | None = None) -> None:
        self._settings = settings
        self.model = model

    def install(self, models: Sequence[LatencyModel]) -> None:
        """Take the head stage's model; the rule knows no other."""
        self.model = models[0]

    def prepare(self, request: ChunkRequest) -> None:
        """Nothing is searched."""

    def begin_step(self, supply: Supply) -> None:
        """Nothing depends on the load."""

    def next_chunk(self, request: ChunkRequest) -> ChunkDecision:
        """The rule's size, bounded by budget and remaining prompt; else the fixed base."""
        if request.must_be_whole:
            return ChunkDecision(request.most_tokens, "whole_prompt")
        base = min(self._settings.base_tokens, request.most_tokens)
        if self.model is None:
            return ChunkDecision(base, "fixed")
        tokens = sglang_chunk(self.model, self._settings, request.prefix_tokens)
        if tokens is None:
            return ChunkDecision(base, "unreachable")
        return ChunkDecision(min(tokens, request.most_tokens), "model")

    def forget(self, sequence_id: int) -> None:
        """Nothing is kept."""
