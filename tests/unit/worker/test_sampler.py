"""Draws are compared with a dense float64 reference that does each filter by its definition."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from atom_lite.worker.blocked_logits import block_logits
from atom_lite.worker.filters import (
    draw_from_all,
    draw_from_nucleus,
    draw_from_top_k,
    row_parameters,
)
from atom_lite.worker.randomness import uniforms
from atom_lite.worker.sampler import Draw, Sampler
from tests.unit.worker.sampling_reference import FILTERS, drawn_weights, params

EOS = 2


def sample(logits, draws, eos_token_ids=(EOS,)):
    """Draw from a copy, since the sampler writes its masks into the logits."""
    sampler = Sampler(vocab_size=logits.shape[1], eos_token_ids=eos_token_ids)
    return sampler.sample(logits.clone(), draws)


def reference_weights(logits, sampling):
    return drawn_weights(logits.double().numpy(), sampling)


def assert_is_the_reference_draw(token, logits, draw):
    """The token is kept, and its stretch of the cumulative weight holds the uniform."""
    weights = reference_weights(logits, draw.sampling)
    assert weights[token] > 0.0
    shares = np.cumsum(weights) / weights.sum()
    uniform = uniforms([draw.sampling.seed], [draw.output_index])[0]
    before = shares[token - 1] if token else 0.0
    assert before - 1e-6 <= uniform <= shares[token] + 1e-6


SAMPLING = st.builds(
    params,
    temperature=st.sampled_from([0.0, 0.02, 0.5, 1.0, 1.7]),
    top_k=st.sampled_from([0, 0, 1, 2, 5, 40, 1000]),
    top_p=st.sampled_from([1.0, 1.0, 0.0, 0.3, 0.91, 0.999]),
    min_p=st.sampled_from([0.0, 0.0, 0.01, 0.4, 1.0]),
    seed=st.integers(-(2**63), 2**64),
)


@settings(max_examples=80, deadline=None)
@given(
    rows=st.lists(st.tuples(SAMPLING, st.integers(0, 5000)), min_size=1, max_size=12),
    vocab_size=st.sampled_from([3, 64, 100, 1000]),
    spread=st.sampled_from([0.0, 1.0, 5.0]),
    grid=st.booleans(),
    by_columns=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_each_token_is_the_reference_draw_alone_and_in_any_batch(
    rows, vocab_size, spread, grid, by_columns, seed
):
    logits = torch.randn(len(rows), vocab_size, generator=torch.Generator().manual_seed(seed))
    logits *= spread
    if grid:
        logits.round_()  # many exact ties
    draws = [Draw(sampling, index) for sampling, index in rows]
    # the head may leave its logits column by column
    tokens = sample(logits.t().contiguous().t() if by_columns else logits, draws)
    for row, (token, draw) in enumerate(zip(tokens, draws, strict=True)):
        assert sample(logits[row : row + 1], [draw]) == [token]
        if draw.sampling.temperature == 0.0 or draw.sampling.top_k == 1:
            assert token == int(logits[row].argmax())
        else:
            assert_is_the_reference_draw(token, logits[row], draw)


@pytest.mark.parametrize("temperature", [0.6, 1.0, 3.0])
@pytest.mark.parametrize("top_p", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("min_p", [0.0, 0.001, 0.05, 0.3])
def test_wide_nucleus_of_a_large_vocabulary_is_exact(temperature, top_p, min_p):
    logits = torch.randn(4, 20000, generator=torch.Generator().manual_seed(3)) * 2
    sampling = params(temperature=temperature, top_p=top_p, min_p=min_p, seed=5)
    for index in range(10):
        draws = [Draw(sampling, 4 * index + row) for row in range(4)]
        for row, token in enumerate(sample(logits, draws)):
            assert_is_the_reference_draw(token, logits[row], draws[row])


@pytest.mark.parametrize("filters", FILTERS.values(), ids=FILTERS.keys())
def test_reference_keeps_what_transformers_keeps(filters):
    logits = torch.randn(1, 500, generator=torch.Generator().manual_seed(2)) * 3
    sampling = params(**filters)
    warpers = LogitsProcessorList([TemperatureLogitsWarper(sampling.temperature)])
    if sampling.top_k:
        warpers.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1.0:
        warpers.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p:
        warpers.append(MinPLogitsWarper(sampling.min_p))
    probabilities = warpers(torch.zeros(1, 0, dtype=torch.int64), logits.clone()).softmax(-1)[0]
    weights = reference_weights(logits[0], sampling)
    np.testing.assert_allclose(weights / weights.sum(), probabilities.numpy(), atol=1e-6)


def test_greedy_takes_the_first_of_equal_logits():
    logits = torch.zeros(3, 200)
    logits[0, [70, 130, 199]] = 4.0
    logits[1, [5, 6]] = 1.0
    greedy = Draw(params(temperature=0.0), 0)
    assert sample(logits, [greedy] * 3) == [70, 5, 0]


def test_vanishing_temperature_is_greedy_and_a_tiny_one_does_not_overflow():
    logits = torch.tensor([[1.0, 80.0, -3e38, 79.9]])
    for temperature in (1e-30, 1e-6, 1e-4):
        assert sample(logits, [Draw(params(temperature=temperature), 0)]) == [1]


@pytest.mark.parametrize(
    ("draw", "filters"),
    [
        (draw_from_all, {}),
        (draw_from_all, {"min_p": 1e-30}),
        (draw_from_nucleus, {"top_p": 0.99}),
        (draw_from_top_k, {"top_k": 9}),
    ],
)
def test_uniform_of_zero_draws_the_first_id_that_weighs_anything(draw, filters):
    logits = torch.full((1, 200), -math.inf)
    logits[0, 100] = -500.0  # too light to count beside the rest
    logits[0, 130:140] = 1.0
    parameters = row_parameters([params(**filters)], torch.zeros(1).double(), vocab_size=200)
    assert draw(block_logits(logits), parameters).tolist() == [130]


@pytest.mark.parametrize("ignore_eos", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_stopping_id_is_drawn_before_min_tokens(temperature, ignore_eos):
    logits = torch.zeros(1, 50)
    logits[0, [0, 2, 9]] = 50.0
    logits[0, 33] = 40.0
    sampling = params(
        temperature=temperature,
        min_tokens=8,
        stop_token_ids=(9, 10**6),
        ignore_eos=ignore_eos,
    )
    for index in range(8):
        assert sample(logits, [Draw(sampling, index)], eos_token_ids=(2, 0)) == [33]
    assert sample(logits, [Draw(sampling, 8)], eos_token_ids=(2, 0))[0] in {0, 2, 9}


def test_min_tokens_of_one_row_leaves_the_others_alone():
    logits = torch.zeros(2, 50)
    logits[:, EOS] = 50.0
    logits[:, 7] = 40.0
    bounded = params(temperature=0.0, min_tokens=1)
    assert sample(logits, [Draw(bounded, 0), Draw(params(temperature=0.0), 0)]) == [7, EOS]


BROKEN_ROWS = {
    "all NaN": lambda row: row.fill_(math.nan),
    "one NaN": lambda row: row[40:41].fill_(math.nan),
    "all +inf": lambda row: row.fill_(math.inf),
    "all -inf": lambda row: row.fill_(-math.inf),
    "NaN and infinities": lambda row: row[:3].copy_(torch.tensor([math.nan, math.inf, -math.inf])),
    "one left": lambda row: row[1:].fill_(-math.inf),
}


@pytest.mark.parametrize("damage", BROKEN_ROWS.values(), ids=BROKEN_ROWS.keys())
@pytest.mark.parametrize("vocab_size", [70, 128])
def test_broken_logits_give_an_id_of_the_vocabulary_and_hurt_no_neighbour(damage, vocab_size):
    logits = torch.randn(20, vocab_size, generator=torch.Generator().manual_seed(4))
    options = [{"temperature": 0.0}] * 10 + list(FILTERS.values())
    draws = [Draw(params(seed=index, **values), index) for index, values in enumerate(options)]
    whole = sample(logits, draws)
    for row in range(20):
        damaged = logits.clone()
        damage(damaged[row])
        tokens = sample(damaged, draws)
        assert 0 <= tokens[row] < vocab_size
        assert tokens[:row] + tokens[row + 1 :] == whole[:row] + whole[row + 1 :]


def test_infinite_logit_wins_and_nan_loses():
    logits = torch.zeros(1, 100)
    logits[0, 5] = math.nan
    logits[0, 60] = math.inf
    for temperature in (0.0, 1.0):
        assert sample(logits, [Draw(params(temperature=temperature), 0)]) == [60]
    logits[0, 60] = 1.0
    assert sample(logits, [Draw(params(temperature=0.0), 0)]) == [60]


def test_options_that_need_the_tokens_cannot_be_drawn_without_them():
    with pytest.raises(AssertionError):
        Draw(params(presence_penalty=0.5), 0)


def test_forbidding_every_id_still_gives_one():
    logits = torch.zeros(1, 3)
    sampling = params(min_tokens=5, stop_token_ids=(0, 1, 2))
    assert sample(logits, [Draw(sampling, 0)])[0] in {0, 1, 2}
