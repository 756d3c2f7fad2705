from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atom_lite.errors import ConfigError
from atom_lite.text.byte_alphabet import spell
from atom_lite.text.gguf_tokenizer import build_tokenizer
from tests.fakes.vocabularies import (
    NASTY_TEXTS,
    SPACE,
    published_smollm_backend,
    sentencepiece_metadata,
    smollm_gguf,
    smollm_tokenizer,
)

PUBLISHED_IDS = {
    " 😀": [40303, 218],
    "日本語": [23274, 115, 40993, 179, 120, 248],
    " Zoë": [26336, 26547],
    "DEFGHIJ": [33203, 23960, 57, 58],
    "Observation:": [23143, 2903, 42],
    "</think>": [9617, 17400, 46],
    "<tool_call>": [44, 19324, 79, 4350, 46],
    "<|im_end|>": [2],
}


def byte_level_metadata(pre: str, tokens=(), types=(), **more) -> dict:
    """A byte-level vocabulary without merges: each byte is a token."""
    alphabet = [spell(bytes([byte])) for byte in range(256)]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [*alphabet, *tokens],
        "tokenizer.ggml.token_type": [1] * 256 + list(types),
        "tokenizer.ggml.merges": [],
    } | {f"tokenizer.ggml.{key}": value for key, value in more.items()}


def pieces(pre: str, text: str) -> list[str]:
    """How a pre-tokenizer cuts a text."""
    backend = build_tokenizer(byte_level_metadata(pre))
    return [text[a:b] for _, (a, b) in backend.pre_tokenizer.pre_tokenize_str(text)]


# ---------------------------------------------------------------- SmolLM2


@pytest.mark.parametrize(("text", "ids"), PUBLISHED_IDS.items())
def test_smollm_gives_the_published_ids(text, ids):
    assert smollm_tokenizer().encode(text, add_special_tokens=False) == ids


@pytest.mark.parametrize("text", NASTY_TEXTS)
def test_smollm_equals_its_published_tokenizer_on_nasty_texts(text):
    ours = smollm_tokenizer().encode(text, add_special_tokens=True)
    assert ours == published_smollm_backend().encode(text).ids


@settings(deadline=None)
@given(st.text(max_size=60) | st.text("a1 \n\t'²<|im_end>é", max_size=60))
def test_smollm_equals_its_published_tokenizer_on_any_text(text):
    ours = smollm_tokenizer().encode(text, add_special_tokens=False)
    assert ours == published_smollm_backend().encode(text, add_special_tokens=False).ids


@pytest.mark.full
def test_smollm_equals_the_conversion_of_transformers():
    """Where the two may be compared: transformers does not know that SmolLM2 cuts single digits."""
    from transformers import AutoTokenizer

    path = smollm_gguf()
    theirs = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    theirs.backend_tokenizer.pre_tokenizer = published_smollm_backend().pre_tokenizer

    @settings(deadline=None, max_examples=1000)
    @given(st.text(max_size=60) | st.sampled_from(NASTY_TEXTS))
    def compare(text):
        assert smollm_tokenizer().encode(text, add_special_tokens=True) == theirs.encode(text)

    compare()


# ---------------------------------------------------------------- byte level


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("smollm", ["I", "'m", " ", "1", "2", "3", "4", " ", " ok", "\n\n", " x", "_", "y"]),
        ("gpt-2", ["I", "'m", " 1234", " ", " ok", "\n\n", " x", "_", "y"]),
        ("llama-bpe", ["I", "'m", " ", "123", "4", " ", " ok", "\n\n", " x", "_y"]),
        ("qwen2", ["I", "'m", " ", "1", "2", "3", "4", " ", " ok", "\n\n", " x", "_y"]),
        ("gpt-4o", ["I'm", " ", "123", "4", " ", " ok", "\n\n", " x", "_y"]),
        ("tekken", ["I", "'m", " ", "1", "2", "3", "4", " ", " ok", "\n\n", " x", "_y"]),
        ("falcon", ["I", "'", "m", " ", "123", "4", " ", " ok", "\n\n", " x", "_", "y"]),
        ("deepseek-v3", ["I", "'m", " ", "123", "4", " ", " ok", "\n\n", " x", "_y"]),
    ],
)
def test_each_pre_tokenizer_cuts_as_its_models_do(pre, expected):
    assert pieces(pre, "I'm 1234  ok\n\n x_y") == expected


def test_qwen_composes_characters_first():
    backend = build_tokenizer(byte_level_metadata("qwen2"))
    assert backend.encode("e\u0301").ids == backend.encode("\u00e9").ids


def test_whole_tokens_keep_their_ids_whatever_letters_they_use():
    tokens = ["<\uff5cUser\uff5c>", "    ", "<think>"]
    backend = build_tokenizer(byte_level_metadata("gpt-2", tokens, [3, 4, 4]))
    assert backend.get_vocab_size() == 259
    ids = backend.encode("<\uff5cUser\uff5c>a    b<think>").ids
    assert ids == [256, ord("a"), 257, ord("b"), 258]
    assert backend.decode(ids, skip_special_tokens=True) == "a    b<think>"


@pytest.mark.parametrize(
    ("pre", "flags", "framed"),
    [
        ("gpt-2", {}, False),
        ("gpt-2", {"add_bos_token": True}, True),
        ("llama-bpe", {}, True),
        ("llama-bpe", {"add_bos_token": False}, False),
    ],
)
def test_bos_is_added_as_the_file_says_else_as_the_family_does(pre, flags, framed):
    metadata = byte_level_metadata(pre, ["<bos>"], [3], bos_token_id=256, **flags)
    backend = build_tokenizer(metadata)
    assert backend.encode("a").ids == ([256, ord("a")] if framed else [ord("a")])
    assert backend.encode("a", add_special_tokens=False).ids == [ord("a")]


def test_eos_is_added_when_the_file_says_so():
    metadata = byte_level_metadata("gpt-2", ["<e>"], [3], eos_token_id=256, add_eos_token=True)
    assert build_tokenizer(metadata).encode("a").ids == [ord("a"), 256]


# ---------------------------------------------------------------- SentencePiece style


def reference_merge(text: str, scores: dict[str, float]) -> list[str]:
    """SentencePiece's algorithm: join the neighbours with the best joint score, leftmost first."""
    symbols = list(text)
    while True:
        pairs = [
            (-scores[a + b], i)
            for i, (a, b) in enumerate(itertools.pairwise(symbols))
            if a + b in scores
        ]
        if not pairs:
            return symbols
        _, at = min(pairs)
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]


@settings(deadline=None)
@given(st.text("thelo wrand.,é", max_size=30))
def test_scores_merge_as_sentencepiece_does(text):
    metadata = sentencepiece_metadata()
    tokens = metadata["tokenizer.ggml.tokens"]
    scores = dict(zip(tokens, metadata["tokenizer.ggml.scores"], strict=True))
    backend = build_tokenizer(metadata)
    spelled = (SPACE + text).replace(" ", SPACE) if text else ""
    expected = [tokens.index(piece) for piece in reference_merge(spelled, scores)]
    assert backend.encode(text).ids == [1, *expected]
    assert backend.decode(backend.encode(text).ids) == text


def test_bytes_that_are_no_token_fall_back_and_control_tokens_are_whole():
    backend = build_tokenizer(sentencepiece_metadata(space_prefix=False))
    ids = backend.encode("日</s>", add_special_tokens=False).ids
    assert ids == [3 + 0xE6, 3 + 0x97, 3 + 0xA5, 2]


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("metadata", "name"),
    [
        ({}, "no tokenizer"),
        (sentencepiece_metadata() | {"tokenizer.ggml.model": "bert"}, "'bert'"),
        (byte_level_metadata("never-heard-of"), "'never-heard-of'"),
        (byte_level_metadata("gpt-2") | {"tokenizer.ggml.merges": ["a qq"]}, "'qq'"),
        (byte_level_metadata("gpt-2") | {"tokenizer.ggml.merges": ["ab"]}, "'ab'"),
        (byte_level_metadata("gpt-2", ["x"]), "257 tokens but 256"),
        (sentencepiece_metadata() | {"tokenizer.ggml.scores": []}, "0 scores"),
    ],
)
def test_what_cannot_be_built_is_refused_by_name(metadata, name):
    with pytest.raises(ConfigError, match=name):
        build_tokenizer(metadata)
