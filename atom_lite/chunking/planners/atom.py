"""ATOM's rule, bit for bit: chunks whose latency equals that of a full-budget first chunk.

    target = a*B^2 + b*B - gamma*L                     B the budget, c cancels
    raw    = (-(2aL+b) + sqrt((2aL+b)^2 + 4a*target)) / (2a)

then smooth, int, floor, cap, align down (`equal_latency_chunk`), and only for a sole prefill. Until
a model is there requests alternate two sizes, because one size cannot tell the model's terms apart.
At L = 0 the answer is B: a prompt no longer than the budget is one chunk.

Pure; runs in the head process. Source: ROCm/ATOM, dynamic_chunking.py and its scheduler.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atom_lite.chunking.planner import DEFAULT_ALIGN_TOKENS, ChunkDecision, ChunkRequest, Supply
from atom_lite.chunking.sources import SolePrefillWindow
from atom_lite.chunking.sweep import Alternation
from atom_lite.errors import ConfigError

if TYPE_CHECKING:
    from atom_lite.chunking.latency_model import LatencyModel

MAX_PREFIX_FRACTION = 0.2  # of a chunk's latency, for its prefix
MIN_USEFUL_SHRINK = 0.05
SWEEP_RATIO = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class AtomSettings:
    """ATOM's flags.

    Raises:
        ConfigError: a smooth factor outside [0, 1], or sizes below 1.
    """

    budget_tokens: int  # --max-num-batched-tokens
    smooth_factor: float = 0.75
    min_chunk_tokens: int = 4096
    block_size: int = 16
    max_model_len: int | None = None

    def __post_init__(self) -> None:
        if not 0.0 <= self.smooth_factor <= 1.0:
            raise ConfigError(
                f"--dynamic-chunking-smooth-factor is {self.smooth_factor}, must be in [0, 1]"
            )
        for flag, value in (
            ("--max-num-batched-tokens", self.budget_tokens),
            ("--dynamic-chunking-min-chunk-size", self.min_chunk_tokens),
        ):
            if value < 1:
                raise ConfigError(f"{flag} is {value}, must be at least 1")

    @property
    def align_tokens(self) -> int:
        """Model-sized chunks are multiples of this."""
        return max(self.block_size, DEFAULT_ALIGN_TOKENS)

    @property
    def sweep_tokens(self) -> tuple[int, int]:
        """The two sizes of the calibration sweep, small first."""
        small = max(self.budget_tokens // SWEEP_RATIO, self.min_chunk_tokens)
        return min(small, self.budget_tokens), self.budget_tokens


def raw_chunk(model: LatencyModel, budget_tokens: int, prefix_tokens: int) -> float | None:
    """The equal-latency chunk as a real number; None where the prefix alone costs too much."""
    a, b = model.attention_seconds_per_area, model.linear_seconds_per_token
    target = (
        a * budget_tokens * budget_tokens
        + b * budget_tokens
        - model.prefix_seconds_per_token * prefix_tokens
    )
    if target <= 0.0:
        return None
    raw = _root(model, prefix_tokens, target)
    return raw if math.isfinite(raw) and raw > 0.0 else None


def prefix_bounded_chunk(model: LatencyModel, prefix_tokens: int) -> float:
    """The smallest chunk that spends at most 20 % of its latency on its prefix."""
    overhead = model.prefix_seconds_per_token * prefix_tokens
    if overhead <= 0.0:
        return 0.0
    own = overhead * (1.0 - MAX_PREFIX_FRACTION) / MAX_PREFIX_FRACTION
    return _root(model, prefix_tokens, own)


def equal_latency_chunk(
    model: LatencyModel, settings: AtomSettings, prefix_tokens: int
) -> int | None:
    """The chunk after this prefix, before the remaining prompt and the step's budget bound it."""
    budget = settings.budget_tokens
    if prefix_tokens == 0:
        return budget
    raw = raw_chunk(model, budget, prefix_tokens)
    if raw is None:
        return None
    smoothed = budget + settings.smooth_factor * (raw - budget)
    floor = max(
        settings.align_tokens,
        settings.min_chunk_tokens,
        int(prefix_bounded_chunk(model, prefix_tokens)),
    )
    bounded = min(max(int(smoothed), floor), budget)
    aligned = bounded - bounded % settings.align_tokens
    return aligned if aligned >= settings.align_tokens else None


def shrinks_usefully(model: LatencyModel, budget_tokens: int) -> bool:
    """Whether the chunk after one full-budget prefix is at least 5 % smaller."""
    raw = raw_chunk(model, budget_tokens, budget_tokens)
    return raw is not None and raw <= budget_tokens * (1.0 - MIN_USEFUL_SHRINK)


def _root(model: LatencyModel, prefix_tokens: int, target: float) -> float:
    # ATOM's own formula, not the model's steadier one: the rounding is part of the rule.
    a = model.attention_seconds_per_area
    slope = 2.0 * a * prefix_tokens + model.linear_seconds_per_token
    return (-slope + math.sqrt(slope * slope + 4.0 * a * target)) / (2.0 * a)


class AtomPlanner:
    """The rule behind its gate; `model` and `is_calibrating` are set by the calibration."""

    def __init__(self, settings: AtomSettings) -> None:
        self.settings = settings
        self.model: LatencyModel | None = None
        self.is_calibrating = False
        self._window = SolePrefillWindow()
        self._alternation = Alternation(settings.sweep_tokens)

    def begin_step(self, supply: Supply) -> None:
        """Note the supply; only 16 steps without a second prefill count as alone."""
        self._window.observe(supply.num_prefills)

    def next_chunk(self, request: ChunkRequest) -> ChunkDecision:
        """Model, sweep or fixed budget, in this order."""
        fixed = min(request.most_tokens, self.settings.budget_tokens)
        if request.must_be_whole:
            return ChunkDecision(fixed, "whole_prompt")
        if self.model is None and not self.is_calibrating:
            return ChunkDecision(fixed, "fixed")
        if not self._window.is_sole:
            return ChunkDecision(fixed, "other_prefills")
        if self.model is None:
            size = self._alternation.choice_for(request.sequence_id)
            return ChunkDecision(min(fixed, size), "sweep")
        chunk = equal_latency_chunk(self.model, self.settings, request.prefix_tokens)
        if chunk is None:
            return ChunkDecision(fixed, "unreachable")
        return ChunkDecision(min(fixed, chunk), "model")

    def forget(self, sequence_id: int) -> None:
        """Drop the size that the sweep gave this sequence."""
        self._alternation.forget(sequence_id)
