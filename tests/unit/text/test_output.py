"""The field's cases on the text pipeline, with the default model's real tokens."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atom_lite.text.output import OutputText, TextDelta
from tests.fakes.vocabularies import NASTY_TEXTS, smollm_tokenizer

EOS = 2


def ids_of(text: str) -> list[int]:
    return smollm_tokenizer().encode(text, add_special_tokens=False)


def output(**options) -> OutputText:
    return OutputText(smollm_tokenizer(), [1, 4093, 198], **options)


def run(text: str, **options) -> tuple[list[str], str | None, int]:
    """(deltas, stop, counted tokens) of a text that comes token by token."""
    pipeline = output(**options)
    deltas = [pipeline.push([i]).text for i in ids_of(text)]
    deltas.append(pipeline.finish().text)
    return deltas, pipeline.stop, pipeline.num_tokens


@settings(deadline=None)
@given(
    text=st.sampled_from(NASTY_TEXTS) | st.text("ab \n", max_size=40),
    stops=st.lists(st.text("ab \n😀", min_size=1, max_size=4), max_size=3),
    cuts=st.lists(st.integers(1, 5), max_size=20),
    include=st.booleans(),
)
def test_streamed_and_whole_output_are_the_same_text(text, stops, cuts, include):
    ids = ids_of(text)
    whole = output(stops=stops, include_stop_str_in_output=include)
    whole_delta = whole.push(ids)
    streamed = output(stops=stops, include_stop_str_in_output=include)
    deltas, at = [], 0
    for size in [*cuts, *[1] * len(ids)]:
        deltas.append(streamed.push(ids[at : at + size]))
        at += size
    assert (
        "".join(d.text for d in deltas) + streamed.finish().text
        == whole_delta.text + whole.finish().text
    )
    assert sum(d.num_tokens for d in deltas) == whole_delta.num_tokens == streamed.num_tokens
    assert streamed.stop == whole.stop


@pytest.mark.parametrize("stop", ["GH I", "GHI", "FGH", "F"])
def test_a_stop_is_cut_out_of_the_middle_of_tokens(stop):
    deltas, found, _ = run(
        "ABC DEFGHIJ".replace("HI", "H I" if " " in stop else "HI"), stops=[stop]
    )
    text = "".join(deltas)
    assert found == stop
    assert text == "ABC DE" + ("F" if stop.startswith("G") else "")


def test_no_part_of_a_stop_leaks():
    deltas, found, _ = run(" x\nObservation: y", stops=["Observation"])
    assert ("".join(deltas), found) == (" x\n", "Observation")


def test_a_stop_is_counted_up_to_the_token_that_completes_it():
    ids = [*ids_of("DEFGHIJ"), *ids_of(" and more")]
    pipeline = output(stops=["GH"])
    assert pipeline.push(ids) == TextDelta("DEF", "GH", 2)
    assert pipeline.push(ids) == TextDelta("", None, 0)
    assert pipeline.finish().text == ""
    assert pipeline.num_tokens == 2


@pytest.mark.parametrize("text", ["hi 😀 日本語", "👨‍👩‍👧"])
def test_no_delta_shows_half_a_character(text):
    deltas, _, num_tokens = run(text)
    assert "".join(deltas) == text
    assert not any("\ufffd" in delta for delta in deltas)
    assert num_tokens == len(ids_of(text)) > len([d for d in deltas if d])


def test_half_a_character_at_the_end_is_shown_as_such():
    pipeline = output()
    assert pipeline.push(ids_of(" 😀")[:1]) == TextDelta(" ", None, 1)
    assert pipeline.finish().text == "\ufffd"


def test_special_tokens_are_left_out_or_shown():
    ids = [*ids_of("a"), EOS, *ids_of("b")]
    assert output().push(ids).text == "ab"
    assert output(skip_special_tokens=False).push(ids).text == "a<|im_end|>b"


@pytest.mark.parametrize("stops", [[], ["zzz"]])
def test_the_token_that_ended_the_output_is_counted_but_not_shown(stops):
    pipeline = output(skip_special_tokens=False, stops=stops)
    assert pipeline.push([*ids_of("a"), EOS], hide_last=True) == TextDelta("a", None, 2)
    assert pipeline.finish().text == ""


def test_no_stop_counts_before_min_tokens():
    ids = ids_of("1212121")
    assert len(ids) == 7
    for min_tokens, text, num_tokens in ((0, "1", 2), (1, "1", 2), (2, "121", 4), (5, "12121", 6)):
        pipeline = output(stops=["2"], min_tokens=min_tokens)
        assert pipeline.push(ids) == TextDelta(text, "2", num_tokens)


def test_a_stop_that_begins_before_min_tokens_and_ends_after_is_cut_whole():
    pipeline = output(stops=["345"], min_tokens=4)
    assert pipeline.push(ids_of("1234567")) == TextDelta("12", "345", 5)


def test_held_text_is_sent_when_the_output_ends_without_the_stop():
    deltas, found, _ = run("so END", stops=["ENDING"])
    assert ("".join(deltas), found) == ("so END", None)


def test_a_stop_in_the_broken_end_of_the_output_is_found():
    pipeline = output(stops=["\ufffd"])
    pipeline.push(ids_of(" 😀")[:1])
    assert (pipeline.finish().text, pipeline.stop) == ("", "\ufffd")


def test_ids_that_the_tokenizer_does_not_know_have_no_text():
    """A model's vocabulary is often padded beyond its tokenizer's."""
    assert output().push([*ids_of("a"), 60_000, *ids_of("b")]).text == "ab"
