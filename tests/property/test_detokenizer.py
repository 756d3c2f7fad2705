"""Any split of any ids streams to the same text as decoding them at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atom_lite.text.detokenizer import IncrementalDetokenizer
from tests.fakes.vocabularies import (
    NASTY_TEXTS,
    byte_fallback_tokenizer,
    metaspace_tokenizer,
    smollm_tokenizer,
)

if TYPE_CHECKING:
    from atom_lite.text.tokenizer import Tokenizer

TEXTS = st.one_of(
    st.text(max_size=40), st.sampled_from(NASTY_TEXTS), st.text("😀é語 a\n", max_size=30)
)


def stream(
    tokenizer: Tokenizer, ids: list[int], sizes: list[int], *, prompt=(), skip: bool = True
) -> list[str]:
    """The deltas of pushing `ids` in parts of these sizes (then one by one), with finish()."""
    detokenizer = IncrementalDetokenizer(tokenizer, prompt, skip_special_tokens=skip)
    deltas, at, left = [], 0, list(sizes)
    while at < len(ids):
        size = left.pop(0) if left else 1
        deltas.append(detokenizer.push(ids[at : at + size]))
        at += size
    return [*deltas, detokenizer.finish()]


# SmolLM2 has no tokens for these bytes: characters that need them come back without.
UNSPELLABLE_BYTES = {0x04, 0x06, 0x13, 0x14, 0x16, 0x1D, 0xF1, 0xF2}
SIZES = st.lists(st.integers(0, 5), max_size=20)


@settings(deadline=None)  # the first example loads a vocabulary
@given(ids=st.lists(st.integers(0, 49151), max_size=40), sizes=SIZES, skip=st.booleans())
def test_byte_level_stream_equals_decoding_any_ids(ids, sizes, skip):
    tokenizer = smollm_tokenizer()
    deltas = stream(tokenizer, ids, sizes, prompt=[1, 500], skip=skip)
    whole = tokenizer.decode(ids, skip_special_tokens=skip)
    assert "".join(deltas) == whole
    assert whole == tokenizer.backend.decode(ids, skip_special_tokens=skip)


@settings(deadline=None)  # the first example loads a vocabulary
@given(text=TEXTS, sizes=SIZES)
def test_text_comes_back_and_no_delta_shows_half_a_character(text, sizes):
    for tokenizer in (smollm_tokenizer(), byte_fallback_tokenizer(space_prefix=False)):
        ids = tokenizer.encode(text, add_special_tokens=False)
        deltas = stream(tokenizer, ids, sizes, skip=False)
        if set(text.encode()) & UNSPELLABLE_BYTES:
            assert "".join(deltas) == tokenizer.decode(ids, skip_special_tokens=False)
            continue
        assert "".join(deltas) == text
        assert sum(d.count("\ufffd") for d in deltas) == text.count("\ufffd")


@settings(deadline=None)  # the first example loads a vocabulary
@given(text=TEXTS, prompt=st.sampled_from(["", "the", "hello and", "語"]), sizes=SIZES)
def test_sentencepiece_stream_is_the_text_after_the_prompts(text, prompt, sizes):
    tokenizer = byte_fallback_tokenizer()
    prompt_ids = tokenizer.encode(prompt, add_special_tokens=True)
    ids = tokenizer.encode(text, add_special_tokens=False)
    deltas = stream(tokenizer, ids, sizes, prompt=prompt_ids)
    before = tokenizer.backend.decode(prompt_ids)
    assert before + "".join(deltas) == tokenizer.backend.decode(prompt_ids + ids)


@settings(deadline=None)  # the first example loads a vocabulary
@given(ids=st.lists(st.integers(0, 296), max_size=30), sizes=SIZES, skip=st.booleans())
def test_byte_fallback_stream_equals_decoding_any_ids(ids, sizes, skip):
    tokenizer = byte_fallback_tokenizer()
    whole = tokenizer.decode(ids, skip_special_tokens=skip)
    assert "".join(stream(tokenizer, ids, sizes, skip=skip)) == whole


@settings(deadline=None)  # the first example loads a vocabulary
@given(ids=st.lists(st.integers(0, 32), max_size=40), sizes=SIZES, data=st.data())
def test_stream_of_any_other_decoder_equals_decoding_after_a_prompt(ids, sizes, data):
    tokenizer = metaspace_tokenizer()
    prompt = data.draw(st.lists(st.integers(0, 32), min_size=1, max_size=30))
    before = tokenizer.backend.decode(prompt)
    whole = tokenizer.backend.decode(prompt + ids)
    assert before + "".join(stream(tokenizer, ids, sizes, prompt=prompt)) == whole


@pytest.mark.parametrize("cut", range(5))
def test_valid_characters_of_a_broken_byte_run_stay(cut):
    """`tokenizers` gives up the whole run; a stream has sent its valid part long ago."""
    tokenizer = byte_fallback_tokenizer()
    ids = [3 + byte for byte in "日".encode() + b"\xe6\x97"]
    deltas = stream(tokenizer, ids, [cut])
    assert "".join(deltas) == "日\ufffd"
    assert tokenizer.backend.decode(ids) == "\ufffd" * 5
