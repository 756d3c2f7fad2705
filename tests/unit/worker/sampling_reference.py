"""Sampling by its definition: one row, one option after the other, dense and in float64.

The slow second implementation that the batched one is compared with, and the chi-square test of
drawn tokens against exact shares.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from atom_lite.messages import SamplingParams
from atom_lite.worker.sampler import Draw
from atom_lite.worker.sequence_shaping import SequenceShaping, shapes_logits

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from numpy.typing import NDArray
    from torch import Tensor


# Temperature and filters, alone and together.
FILTERS = {
    "temperature": {"temperature": 0.7},
    "hot": {"temperature": 1.8},
    "top_k": {"top_k": 7},
    "top_p": {"top_p": 0.6, "temperature": 0.5},
    "wide top_p": {"top_p": 0.95, "temperature": 1.5},
    "min_p": {"min_p": 0.1},
    "top_k and top_p": {"top_k": 20, "top_p": 0.8, "temperature": 1.2},
    "top_k and min_p": {"top_k": 20, "min_p": 0.2, "temperature": 1.2},
    "top_p and min_p": {"top_p": 0.9, "min_p": 0.05},
    "all filters": {"top_k": 15, "top_p": 0.9, "min_p": 0.05, "temperature": 0.9},
}


def params(**values: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 100} | values)


def draw_of(
    sampling: SamplingParams,
    output_index: int,
    *,
    vocab_size: int,
    prompt: Sequence[int] = (),
    output: Sequence[int] = (),
) -> Draw:
    """A draw that knows the sequence's tokens; `output_index` need not be their number."""
    if not shapes_logits(sampling):
        return Draw(sampling, output_index)
    before, after = (np.array(ids, dtype=np.int32) for ids in (prompt, output))
    shaping = SequenceShaping(sampling, before, after, vocab_size=vocab_size)
    return Draw(sampling, output_index, shaping)


def shaped_logits(
    logits: Tensor,
    sampling: SamplingParams,
    *,
    prompt: Sequence[int] = (),
    output: Sequence[int] = (),
    output_index: int | None = None,
    eos_token_ids: Iterable[int] = (),
) -> NDArray[np.float64]:
    """One row [V] after bans, bias and penalties."""
    index = len(output) if output_index is None else output_index
    values = [float(value) for value in logits]
    if sampling.allowed_token_ids is not None:
        others = set(range(len(values))) - set(sampling.allowed_token_ids)
        values = _without(values, others)
    banned = {
        word[-1]
        for word in sampling.bad_words
        if list(output[len(output) - len(word) + 1 :]) == list(word[:-1])
        and len(output) >= len(word) - 1
    }
    if index < sampling.min_tokens:
        banned |= {*eos_token_ids, *sampling.stop_token_ids}
    values = _without(values, banned)
    for token_id, bias in sampling.logit_bias.items():
        values[token_id] += bias
    for token_id in {*prompt, *output}:
        value = values[token_id]
        repetition = sampling.repetition_penalty
        values[token_id] = value / repetition if value > 0 else value * repetition
    for token_id in output:
        values[token_id] -= sampling.frequency_penalty
    for token_id in set(output):
        values[token_id] -= sampling.presence_penalty
    return np.array(values)


def _without(values: list[float], banned: set[int]) -> list[float]:
    """Forbid ids; a row that would keep none keeps all."""
    left = [-math.inf if token_id in banned else v for token_id, v in enumerate(values)]
    return values if max(left) == -math.inf else left


def drawn_weights(logits: NDArray[np.float64], sampling: SamplingParams) -> NDArray[np.float64]:
    """What each id weighs, [V], after temperature and filters."""
    weights = np.exp((logits - logits.max()) / sampling.temperature)
    if 0 < sampling.top_k < len(weights):
        weights[weights < np.sort(weights)[-sampling.top_k]] = 0.0
    if sampling.top_p < 1.0:
        order = np.argsort(-weights, kind="stable")
        before = np.cumsum(weights[order]) - weights[order]
        out = before >= sampling.top_p * weights.sum()
        out[0] = False
        weights[order[out]] = 0.0
    weights[weights < sampling.min_p] = 0.0
    return weights


def assert_frequencies(observed: NDArray[np.int64], weights: NDArray[np.float64]) -> None:
    """The counts [V] of drawn ids fit the weights: the chi-square statistic is below its 99.9 %
    quantile, and nothing of weight 0 was drawn."""
    expected = weights / weights.sum() * observed.sum()
    assert observed[expected == 0.0].sum() == 0
    often = expected >= 5.0
    statistic = ((observed[often] - expected[often]) ** 2 / expected[often]).sum()
    rest = expected[~often].sum()
    if rest > 0.0:
        statistic += (observed[~often].sum() - rest) ** 2 / rest
    degrees = int(often.sum() + (rest > 0.0)) - 1
    assert degrees > 0
    assert statistic < chi_square_limit(degrees)


def chi_square_limit(degrees: int) -> float:
    """The 99.9 % quantile (Wilson and Hilferty's approximation, within 1 %)."""
    spread = 2.0 / (9.0 * degrees)
    return degrees * (1.0 - spread + 3.09 * math.sqrt(spread)) ** 3
