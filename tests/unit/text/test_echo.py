from __future__ import annotations

import pytest

from atom_lite.text.echo import echo_of
from tests.fakes.vocabularies import NASTY_TEXTS, byte_fallback_tokenizer, smollm_tokenizer


@pytest.mark.parametrize("text", NASTY_TEXTS)
def test_a_text_is_repeated_as_it_was_sent_and_each_token_begins_in_it(text):
    tokenizer = smollm_tokenizer()
    ids = tokenizer.encode(text, add_special_tokens=True)
    echo = echo_of(tokenizer, ids, text)
    assert echo.text == text
    assert echo.starts == sorted(echo.starts)
    data = b""
    for token_id, start in zip(ids, echo.starts, strict=True):
        whole = data.decode("utf-8", "ignore")
        assert start == len(whole)
        data += tokenizer.token_bytes(token_id)
    assert echo == echo_of(tokenizer, ids, None) or "\ufffd" in text


def test_token_ids_are_repeated_as_what_they_spell():
    tokenizer = smollm_tokenizer()
    assert echo_of(tokenizer, [1, 33203, 2, 40303], None) == (
        "<|im_start|>DEF<|im_end|> \ufffd",
        [0, 12, 15, 25],
    )


def test_what_the_tokenizer_puts_before_a_text_is_not_in_its_echo():
    tokenizer = byte_fallback_tokenizer()
    ids = [1, *tokenizer.encode("hello the", add_special_tokens=False)]
    pieces = [tokenizer.token_bytes(token_id) for token_id in ids]
    assert pieces == [b"<s>", b" he", b"ll", b"o", b" the"]
    assert echo_of(tokenizer, ids, "hello the") == ("hello the", [0, 0, 2, 4, 5])
    assert echo_of(tokenizer, ids[1:], "hello the") == ("hello the", [0, 2, 4, 5])


def test_a_text_that_its_tokens_do_not_spell_keeps_its_length():
    tokenizer = smollm_tokenizer()
    echo = echo_of(tokenizer, tokenizer.encode("abcdef", add_special_tokens=False), "XY")
    assert echo.text == "XY"
    assert all(0 <= start <= 2 for start in echo.starts)
