"""The lists beside a text: in step with it, whatever the split."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atom_lite.messages import Logprobs
from atom_lite.text.listed_tokens import ListedToken, ListedTokens
from atom_lite.text.output import OutputText
from tests.fakes.vocabularies import (
    NASTY_TEXTS,
    byte_fallback_tokenizer,
    metaspace_tokenizer,
    smollm_tokenizer,
)

EOS = 2
DEFGHIJ = [33203, 23960, 57, 58]  # DEF GH I J
SMILE = [40303, 218]  # " " and a smiling face of two tokens


def ids_of(text: str) -> list[int]:
    return smollm_tokenizer().encode(text, add_special_tokens=False)


def listing(**options) -> ListedTokens:
    return ListedTokens(OutputText(smollm_tokenizer(), [1, 4093, 198], **options))


def run(ids: list[int], cuts: list[int], tokens: ListedTokens, *, hide_last: bool = False):
    """[(text, tokens listed with it)] of every push and of the end."""
    parts, at = [], 0
    for size in [*cuts, *[1] * len(ids)]:
        part = ids[at : at + size]
        at += size
        if not part:
            break
        ends = hide_last and at >= len(ids)
        parts.append((tokens.push(part, [], hide_last=ends).text, tokens.take()))
    parts.append((tokens.finish().text, tokens.take()))
    return parts


@settings(deadline=None)
@given(
    ids=st.sampled_from(NASTY_TEXTS).map(ids_of)
    | st.text("ab \n😀", max_size=30).map(ids_of)
    | st.lists(st.sampled_from([*SMILE, EOS, 1, 218, 179, 60_000, *ids_of("ab c")]), max_size=12),
    stops=st.lists(st.text("ab \n😀\ufffd", min_size=1, max_size=4), max_size=3),
    cuts=st.lists(st.integers(1, 5), max_size=20),
    include=st.booleans(),
    ended=st.booleans(),
)
def test_parts_of_a_stream_join_to_the_whole_list(ids, stops, cuts, include, ended):
    ids = [*ids, EOS] if ended else ids
    options = {"stops": stops, "include_stop_str_in_output": include}
    whole_text, whole = "", []
    for text, tokens in run(ids, [len(ids)] if ids else [], listing(**options), hide_last=ended):
        whole_text += text
        whole += tokens
    sent, listed = 0, []
    *parts, (tail, last) = run(ids, cuts, listing(**options), hide_last=ended)
    for text, tokens in parts:
        before, sent = sent, sent + len(text)
        assert all(before <= token.start < sent for token in tokens)
        listed += tokens
    sent += len(tail)
    listed += last
    assert listed == whole
    assert sent == len(whole_text)
    assert [token.token_id for token in whole] == ids[: len(whole)]
    starts = [token.start for token in whole]
    assert starts == sorted(starts)
    stopped = OutputText(smollm_tokenizer(), [1, 4093, 198], **options)
    stopped.push(ids, hide_last=ended)
    stopped.finish()
    if stopped.stop is None:
        assert len(whole) == len(ids)
    else:
        assert all(start < len(whole_text) for start in starts)


@settings(deadline=None)
@given(text=st.sampled_from(NASTY_TEXTS), cuts=st.lists(st.integers(1, 4), max_size=10))
@pytest.mark.parametrize("make", [byte_fallback_tokenizer, metaspace_tokenizer])
def test_every_kind_of_vocabulary_lists_all_tokens_in_order(make, text, cuts):
    tokenizer = make()
    ids = tokenizer.encode(text, add_special_tokens=False)
    parts = run(ids, cuts, ListedTokens(OutputText(tokenizer, ids[:1])))
    assert [token.token_id for _, tokens in parts for token in tokens] == ids


@pytest.mark.parametrize(
    ("stop", "include", "text", "listed"),
    [
        ("GH", False, "DEF", [(33203, 0)]),  # the cut is where GH begins
        ("FGH", False, "DE", [(33203, 0)]),  # the cut goes through DEF
        ("HI", False, "DEFG", [(33203, 0), (23960, 3)]),  # and through GH
        ("D", False, "", []),
        ("GH", True, "DEFGH", [(33203, 0), (23960, 3)]),
        ("G", True, "DEFG", [(33203, 0), (23960, 3)]),
        ("zzz", False, "DEFGHIJ", [(33203, 0), (23960, 3), (57, 5), (58, 6)]),
    ],
)
def test_a_stop_cuts_the_list_where_it_cuts_the_text(stop, include, text, listed):
    options = {"stops": [stop], "include_stop_str_in_output": include}
    parts = run(DEFGHIJ, [], listing(**options))
    assert "".join(part for part, _ in parts) == text
    assert [token[:2] for _, tokens in parts for token in tokens] == listed


def test_tokens_come_with_the_text_that_they_begin():
    parts = run([*ids_of("hi"), *SMILE, EOS, *ids_of("!")], [], listing())
    assert parts == [
        ("hi", [ListedToken(*ids_of("hi"), 0)]),
        (" ", [ListedToken(40303, 2)]),
        ("😀", [ListedToken(218, 3)]),
        ("", []),  # a control token without text waits for text after it
        ("!", [ListedToken(EOS, 4), ListedToken(*ids_of("!"), 4)]),
        ("", []),
    ]


def test_tokens_of_text_that_may_become_a_stop_are_held_with_it():
    parts = run(DEFGHIJ, [], listing(stops=["EFGHIX"]))
    assert parts == [
        ("D", [ListedToken(33203, 0)]),
        ("", []),
        ("", []),
        ("EFGHIJ", [ListedToken(23960, 3), ListedToken(57, 5), ListedToken(58, 6)]),
        ("", []),
    ]


def test_the_token_that_ends_the_output_is_listed_last():
    parts = run([*DEFGHIJ[:1], EOS], [2], listing(stops=["EFX"]), hide_last=True)
    assert parts == [
        ("D", [ListedToken(33203, 0)]),
        ("EF", [ListedToken(EOS, 3)]),
    ]


def test_each_token_keeps_what_was_told_of_it():
    told = [Logprobs(bytes([index] * 4), b"\0" * 4, 1) for index in range(4)]
    tokens = listing(stops=["IJ"])
    delta = tokens.push([*DEFGHIJ, 57], [*told, told[0]])
    assert (delta.text, delta.stop, delta.num_tokens) == ("DEFGH", "IJ", 4)
    assert [token.logprobs for token in tokens.take()] == told[:2]
    assert tokens.push(DEFGHIJ, told).num_tokens == 0
    assert (tokens.finish().text, tokens.take()) == ("", [])
