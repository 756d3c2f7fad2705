"""Frequencies of drawn tokens against the exact softmax: each option, and options together."""

import dataclasses

import numpy as np
import pytest
import torch

from atom_lite.worker.sampler import Sampler
from tests.unit.worker.sampling_reference import (
    FILTERS,
    assert_frequencies,
    draw_of,
    drawn_weights,
    params,
    shaped_logits,
)

VOCAB = 200
EOS = 2
BATCH = 3000
PROMPT = [7, 7, 9, 30, 31, 32, 33, 150, 199]
OUTPUT = [9, 9, 9, 41, 42, 150, 41, 60]

PENALTIES = {"presence_penalty": 0.8, "frequency_penalty": 0.6, "repetition_penalty": 1.4}
BIAS = {"logit_bias": {9: 3.5, 41: -1.0, 100: 5.0, 7: -100.0}}
ALLOWED = {"allowed_token_ids": (*range(0, VOCAB, 3), 41, 100)}
BAD_WORDS = {"bad_words": ((100,), (3,), (41, 60, 17), (60, 18), (60, 9, 20), (9, 60))}
EARLY = {"min_tokens": 10**9, "stop_token_ids": (5, 100)}
SHAPES = {
    "presence": {"presence_penalty": 1.1},
    "frequency": {"frequency_penalty": 0.9},
    "negative frequency": {"frequency_penalty": -0.7},
    "repetition": {"repetition_penalty": 1.6},
    "repetition below 1": {"repetition_penalty": 0.7},
    "penalties": PENALTIES,
    "bias": BIAS,
    "allowed": ALLOWED,
    "bad words": BAD_WORDS,
    "min_tokens": EARLY,
    "bias and penalties": BIAS | PENALTIES,
    "penalties and temperature": PENALTIES | {"temperature": 1.7},
    "penalties and top_k": PENALTIES | {"top_k": 25},
    "bias and top_p": BIAS | {"top_p": 0.7, "temperature": 1.3},
    "allowed and min_p": ALLOWED | {"min_p": 0.05},
    "bad words and wide top_p": BAD_WORDS | {"top_p": 0.95, "temperature": 1.5},
    "all shapes": BIAS | PENALTIES | ALLOWED | BAD_WORDS | EARLY,
    "all": BIAS | PENALTIES | ALLOWED | BAD_WORDS | EARLY | FILTERS["all filters"] | {"top_k": 40},
}
OPTIONS = FILTERS | SHAPES


def check(options, num_batches):
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(1)) * 2
    sampling = params(seed=11, **options)
    sampler = Sampler(vocab_size=VOCAB, eos_token_ids=(EOS,))
    observed = np.zeros(VOCAB, dtype=np.int64)
    first = draw_of(sampling, 0, vocab_size=VOCAB, prompt=PROMPT, output=OUTPUT)
    for batch in range(num_batches):
        # Every index of the stream has its number, while the penalties count the same tokens.
        indices = range(batch * BATCH, (batch + 1) * BATCH)
        draws = [dataclasses.replace(first, output_index=index) for index in indices]
        tokens = sampler.sample(logits.repeat(BATCH, 1), draws)
        observed += np.bincount(tokens, minlength=VOCAB)
    shaped = shaped_logits(logits, sampling, prompt=PROMPT, output=OUTPUT, eos_token_ids=(EOS,))
    assert_frequencies(observed, drawn_weights(shaped, sampling))


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_frequencies_match_the_exact_distribution(options):
    check(options, 2)


@pytest.mark.full
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_frequencies_match_the_exact_distribution_over_many_draws(options):
    check(options, 100)
