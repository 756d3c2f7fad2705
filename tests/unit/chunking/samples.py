"""Coefficients and synthetic timings that the chunking tests share."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from atom_lite.chunking.latency_model import Chunk, LatencyModel

# ATOM's published coefficients (Kimi-K2.5), a small model, attention only, and a heavy prefix.
KIMI = LatencyModel.from_milliseconds(a=3.25e-7, b=6.03e-3, c=26.1, gamma=5.39e-4)
SMALL = LatencyModel.from_milliseconds(a=6.52e-8, b=3.16e-4, c=0.0, gamma=2.76e-6)
UNIT = LatencyModel.from_milliseconds(a=1.0, b=0.0, c=0.0)
HEAVY_PREFIX = LatencyModel.from_milliseconds(a=3.25e-7, b=6.03e-3, c=26.1, gamma=5.39e-3)
# What ATOM's own tests serve with.
SERVED = LatencyModel.from_milliseconds(a=2.5e-5, b=0.015, c=3.0, gamma=0.002)

Timing = Callable[[int, int], float]


def fixed_chunks(prompt_tokens: int, chunk_tokens: int, prefix_tokens: int = 0) -> Iterator[Chunk]:
    """A prompt's chunks under fixed chunking."""
    position = prefix_tokens
    while position < prompt_tokens:
        new = min(chunk_tokens, prompt_tokens - position)
        yield Chunk(position, new)
        position += new


def noisy(model: LatencyModel, fraction: float, seed: int = 0) -> Timing:
    """The model's time, off by up to `fraction` (uniform)."""
    rng = random.Random(seed)

    def seconds(prefix: int, new: int) -> float:
        return model.chunk_seconds(prefix, new) * (1.0 + rng.uniform(-fraction, fraction))

    return seconds


def scaled(model: LatencyModel, factor: float) -> LatencyModel:
    """The same machine, slower by `factor` in everything."""
    return LatencyModel(
        constant_seconds=model.constant_seconds * factor,
        prefix_seconds_per_token=model.prefix_seconds_per_token * factor,
        linear_seconds_per_token=model.linear_seconds_per_token * factor,
        attention_seconds_per_area=model.attention_seconds_per_area * factor,
        decode_row_seconds=model.decode_row_seconds * factor,
        decode_context_seconds_per_token=model.decode_context_seconds_per_token * factor,
    )
