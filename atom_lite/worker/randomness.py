"""One uniform number per drawn token, as a pure function of (seed, output index).

Why: a token that is computed again (after a preemption, in another batch, on other stages) must be
drawn again identically. A generator with state cannot promise that; a counter-based hash can: the
number for output token i depends on nothing but the sequence's seed and i.

How: the seed is hashed once, so that seeds 0, 1, 2 start far apart; from there output i is the i-th
value of the SplitMix64 stream that begins at the hashed seed. The top 53 bits become a float64 in
[0, 1).

Runs on the last stage. Must not keep state. Source: Steele, Lea, Flood, "Fast splittable
pseudorandom number generators" (OOPSLA'14), whose finalizer is used as published.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

WORD_MASK = (1 << 64) - 1
GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
FIRST_MULTIPLIER = np.uint64(0xBF58476D1CE4E5B9)
SECOND_MULTIPLIER = np.uint64(0x94D049BB133111EB)
MANTISSA_BITS = 53


def uniforms(seeds: Sequence[int], output_indices: Sequence[int]) -> NDArray[np.float64]:
    """The uniform numbers in [0, 1) of output tokens `output_indices` under `seeds`, pairwise.

    Any Python integer is a seed; it counts modulo 2**64.
    """
    seed_words = np.array([seed & WORD_MASK for seed in seeds], dtype=np.uint64)
    counters = np.array(output_indices, dtype=np.uint64) + np.uint64(1)
    words = _mix(_mix(seed_words + GOLDEN_GAMMA) + counters * GOLDEN_GAMMA)
    mantissas = words >> np.uint64(64 - MANTISSA_BITS)
    return mantissas.astype(np.float64) * 2.0**-MANTISSA_BITS


def _mix(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finalizer: every input bit flips about half of the output bits."""
    words = (words ^ (words >> np.uint64(30))) * FIRST_MULTIPLIER
    words = (words ^ (words >> np.uint64(27))) * SECOND_MULTIPLIER
    return words ^ (words >> np.uint64(31))
