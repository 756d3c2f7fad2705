"""What a checkpoint says about its rotary embedding. Free of torch: `models.spec` reads it.

The formulas are in `rope`. Types whose frequencies follow the running length (`dynamic`) or switch
at a length (`longrope`) are not here: keys that are already in the cache would turn wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

RopeType: TypeAlias = Literal["default", "linear", "llama3", "yarn"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeParameters:
    """Base frequency and scaling; the scaling fields count for the types named beside them."""

    theta: float = 10000.0
    type: RopeType = "default"
    factor: float = 1.0  # linear, llama3, yarn
    original_max_positions: int = 0  # llama3, yarn: context length before scaling
    low_frequency_factor: float = 1.0  # llama3
    high_frequency_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    truncate: bool = True  # yarn: round the correction range to whole dimensions
    attention_factor: float | None = None  # yarn: scale of cos and sin; None: from `factor`
    mscale: float | None = None  # yarn
    mscale_all_dim: float | None = None  # yarn
    frequency_divisors: tuple[float, ...] = ()  # GGUF's rope_freqs.weight, one per D/2 dimension
