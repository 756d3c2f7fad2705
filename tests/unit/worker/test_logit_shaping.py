"""Shaped logits are compared with a reference that does one option after the other."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

from atom_lite.worker.logit_shaping import LogitShaper
from atom_lite.worker.sampler import Sampler
from tests.unit.worker.sampling_reference import draw_of, params, shaped_logits

VOCAB = 70
EOS = (2, 5)
IDS = st.integers(0, VOCAB - 1)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "presence_penalty": st.sampled_from([-2.0, 0.5, 2.0]),
        "frequency_penalty": st.sampled_from([-2.0, 0.5, 2.0]),
        "repetition_penalty": st.sampled_from([0.5, 1.3, 2.0]),
        "logit_bias": st.dictionaries(IDS, st.sampled_from([-100.0, -1.5, 3.0, 100.0])),
        "allowed_token_ids": st.lists(IDS, max_size=80).map(tuple),
        "bad_words": st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple)).map(
            tuple
        ),
        "min_tokens": st.sampled_from([1, 4, 100]),
        "stop_token_ids": st.sampled_from([(9,), (10**6, 9, 9)]),
    },
)
# Few different ids, so that words are completed and ids repeated.
TOKENS = st.lists(st.integers(0, 3) | IDS, max_size=30)


def shape(logits, draws, eos_token_ids=EOS):
    shaped = logits.clone()
    LogitShaper(vocab_size=logits.shape[1], eos_token_ids=eos_token_ids).shape(shaped, draws)
    return shaped


def by_columns(logits):
    """The same values, laid out as the output head leaves them on a CPU."""
    return logits.t().clone(memory_format=torch.contiguous_format).t()


@settings(max_examples=150)
@given(
    rows=st.lists(st.tuples(OPTIONS, TOKENS, TOKENS), min_size=1, max_size=6),
    seed=st.integers(0, 2**32),
    masked=st.booleans(),
)
def test_each_row_is_the_references_alone_and_in_any_batch_and_layout(rows, seed, masked):
    source = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(rows), VOCAB, generator=source) * 4
    if masked:  # as a grammar does
        keep = torch.rand(len(rows), VOCAB, generator=source) < 0.1
        keep[:, 0] = True
        logits.masked_fill_(~keep, -math.inf)
    draws = [
        draw_of(params(**options), len(output), vocab_size=VOCAB, prompt=prompt, output=output)
        for options, prompt, output in rows
    ]
    shaped = shape(logits, draws)
    # One row by columns is a view of two (`layers.linear`), so its neighbours are in the way.
    beside_others = by_columns(logits.repeat(2, 1))[: len(rows)]
    for layout in (by_columns(logits), beside_others):
        LogitShaper(vocab_size=VOCAB, eos_token_ids=EOS).shape(layout, draws)
        assert layout.equal(shaped)
    for row, (options, prompt, output) in enumerate(rows):
        assert shape(logits[row : row + 1], [draws[row]])[0].equal(shaped[row])
        sampling = params(
            **options | {"stop_token_ids": (9,) if "stop_token_ids" in options else ()}
        )
        expected = shaped_logits(
            logits[row], sampling, prompt=prompt, output=output, eos_token_ids=EOS
        )
        np.testing.assert_allclose(shaped[row].numpy(), expected, rtol=1e-5, atol=1e-4)
        assert shaped[row].isfinite().any()


def test_plain_rows_beside_shaped_ones_keep_every_bit():
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(1))
    busy = params(
        presence_penalty=1.0,
        repetition_penalty=1.5,
        logit_bias={4: 1.0},
        allowed_token_ids=(4, 5, 6),
        bad_words=((5,),),
        min_tokens=9,
    )
    draws = [draw_of(sampling, 2, vocab_size=VOCAB, output=[4, 4]) for sampling in (params(), busy)]
    shaped = shape(logits, [draws[0], draws[1], draws[0]])
    assert shaped[[0, 2]].equal(logits[[0, 2]])
    assert shaped[1].isfinite().nonzero().flatten().tolist() == [4, 6]


PROMPT = [1, 1, 30, 60]
OUTPUT = [3, 30, 8, 3]
PROCESSORS = {
    "repetition": (
        {"repetition_penalty": 1.7},
        lambda: RepetitionPenaltyLogitsProcessor(1.7),
        PROMPT + OUTPUT,
    ),
    "bias": (
        {"logit_bias": {3: -2.5, 50: 4.0}},
        lambda: SequenceBiasLogitsProcessor([[[3], -2.5], [[50], 4.0]]),
        PROMPT + OUTPUT,
    ),
    "bad words": (
        {"bad_words": ((9,), (8, 3, 20), (3, 21), (30, 3, 22), (60, 3, 30, 8, 3, 23))},
        lambda: NoBadWordsLogitsProcessor(
            [[9], [8, 3, 20], [3, 21], [30, 3, 22], [60, 3, 30, 8, 3, 23]]
        ),
        OUTPUT,  # the prompt does not count: vLLM's rule
    ),
    "allowed": (
        {"allowed_token_ids": (3, 40, 41)},
        lambda: SuppressTokensLogitsProcessor([i for i in range(VOCAB) if i not in (3, 40, 41)]),
        PROMPT + OUTPUT,
    ),
}


@pytest.mark.parametrize(
    ("options", "make_processor", "seen"), PROCESSORS.values(), ids=PROCESSORS.keys()
)
def test_options_mean_what_transformers_processors_do(options, make_processor, seen):
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(2)) * 3
    expected = make_processor()(torch.tensor([seen]), logits.clone())
    draw = draw_of(params(**options), 4, vocab_size=VOCAB, prompt=PROMPT, output=OUTPUT)
    assert not expected.equal(logits)
    torch.testing.assert_close(shape(logits, [draw]), expected)


IMPOSSIBLE = {
    "allowed but bad": {"allowed_token_ids": (7, 8), "bad_words": ((7,), (8,))},
    "allowed but early": {"allowed_token_ids": (2,), "min_tokens": 5},
    "none allowed": {"allowed_token_ids": ()},
    "only unknown ids allowed": {"allowed_token_ids": (10**9,)},
    "all bad": {"bad_words": tuple((token_id,) for token_id in range(VOCAB))},
}


@pytest.mark.parametrize("options", IMPOSSIBLE.values(), ids=IMPOSSIBLE.keys())
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_options_that_forbid_every_id_still_draw_an_allowed_one(options, temperature):
    logits = torch.randn(2, VOCAB, generator=torch.Generator().manual_seed(3))
    sampler = Sampler(vocab_size=VOCAB, eos_token_ids=EOS)
    sampling = params(temperature=temperature, presence_penalty=2.0, **options)
    draws = [draw_of(sampling, 1, vocab_size=VOCAB, output=[6]), draw_of(params(), 0, vocab_size=1)]
    neighbour = sampler.sample(logits.clone(), [draws[1]] * 2)[1]
    token, other = sampler.sample(logits, draws)
    allowed = [i for i in sampling.allowed_token_ids or () if i < VOCAB]
    assert token in (allowed or range(VOCAB))
    assert other == neighbour


def test_grammar_outranks_the_options():
    """What a mask forbade stays forbidden, also where nothing else is left."""
    logits = torch.full((3, VOCAB), -math.inf)
    logits[:, 2] = 1.0  # a complete grammar: only EOS may follow
    options = (
        {"min_tokens": 50},
        {"allowed_token_ids": (7,), "logit_bias": {7: 100.0}},
        {"bad_words": ((2,),), "presence_penalty": -2.0},
    )
    draws = [draw_of(params(**o), 3, vocab_size=VOCAB, output=[7, 7, 7]) for o in options]
    assert Sampler(vocab_size=VOCAB, eos_token_ids=EOS).sample(logits, draws) == [2, 2, 2]


def test_extreme_penalties_forbid_and_overflow_nothing():
    logits = torch.tensor([[-5.0, 5.0, 0.0, 1e-30]]).repeat(2, 1)
    options = ({"repetition_penalty": 1e38}, {"repetition_penalty": 1e-38})
    draws = [draw_of(params(**o), 4, vocab_size=4, output=[0, 1, 2, 3]) for o in options]
    shaped = shape(logits, draws, eos_token_ids=())
    assert shaped.isfinite().all()
    assert shaped[0].argmin() == 0
    assert shaped[1].argmax() == 1


@pytest.mark.parametrize("damage", [math.nan, math.inf, -math.inf])
def test_broken_logits_still_give_an_id_of_the_vocabulary(damage):
    logits = torch.full((2, VOCAB), damage)
    busy = params(
        repetition_penalty=1.5, allowed_token_ids=(4, 5, 6), bad_words=((5,),), min_tokens=9
    )
    draws = [draw_of(busy, 2, vocab_size=VOCAB, output=[4, 4])] * 2
    tokens = Sampler(vocab_size=VOCAB, eos_token_ids=EOS).sample(logits, draws)
    assert all(0 <= token < VOCAB for token in tokens)
