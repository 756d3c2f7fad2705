"""Tool-call parsers: whatever a model writes and however it arrives."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.written_calls import FORMATS, Call, calls_of, content_of, named, parse

# letters that formats are made of among them, but no whole marks
LETTERS = st.sampled_from("ab {}[]\"'\\,:;<>/=()`\n|_\u00e9\U0001f600")
TEXT = st.text(LETTERS, max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-999, 999) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "city": TEXT,
        "days": st.integers(-9, 99),
        "where": st.dictionaries(TEXT, JSON, max_size=3),
        "tags": st.lists(JSON, max_size=3),
        "exact": st.booleans() | st.none(),
        "share": st.sampled_from([0.5, -2.25, 1e-9]),
    },
)
CALLS = st.lists(
    st.builds(Call, st.just("get_weather"), ARGUMENTS) | st.just(Call("now", {})),
    min_size=1,
    max_size=3,
)
CONTENT = st.sampled_from(["", "Let me see.", "a < b\n\n- c: {1}", "\n"])
CUTS = st.lists(st.integers(0, 400), max_size=12)
NAMES = st.sampled_from(sorted(FORMATS))
DAMAGE = st.sampled_from(
    ["", "x", '"', "}", "{", "\n", "<", "</tool_call>", "</function>", ")", "]"]
)


def split(text: str, cuts: list[int]) -> list[str]:
    bounds = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    return [text[start:end] for start, end in itertools.pairwise(bounds)]


def check_same_for_any_split(name: str, text: str, cuts: list[int], *, cut: bool) -> None:
    """One promise for every text: see `tool_calls/parser.py`."""
    make = FORMATS[name].make
    parser = make()
    whole = parse(parser, [text], cut=cut)
    assert parse(make(), list(text), cut=cut) == whole
    assert parse(make(), split(text, cuts), cut=cut) == whole
    content, calls = content_of(whole), calls_of(whole)
    for mark in parser.marks:
        assert mark not in content
        if cut and len(mark) > 1:
            assert not content.endswith(mark[:-1])
    for index, (_, arguments) in enumerate(calls):
        if parser.unfinished and index == len(calls) - 1:
            continue
        assert isinstance(json.loads(arguments), dict)


@settings(deadline=None)
@given(name=NAMES, content=CONTENT, calls=CALLS, cuts=CUTS)
def test_well_formed_calls_come_out_as_they_are_meant(name, content, calls, cuts):
    content = content if FORMATS[name].leads else ""
    text = FORMATS[name].write(content, calls)
    parts = parse(FORMATS[name].make(), split(text, cuts))
    assert [(n, json.loads(a)) for n, a in calls_of(parts)] == [tuple(call) for call in calls]
    assert content_of(parts) == content.rstrip()
    check_same_for_any_split(name, text, cuts, cut=False)


@settings(deadline=None)
@given(name=NAMES, content=CONTENT, calls=CALLS, cuts=CUTS, end=st.integers(0, 400))
def test_cut_texts_tell_what_was_complete_and_no_more(name, content, calls, cuts, end):
    text = FORMATS[name].write(content, calls)
    text = text[: end % len(text)]
    check_same_for_any_split(name, text, cuts, cut=True)
    check_same_for_any_split(name, text, cuts, cut=False)
    if FORMATS[name].leads:
        parser = FORMATS[name].make()
        told = calls_of(parse(parser, [text], cut=True))
        for (_, arguments), call in zip(told, calls, strict=False):
            complete = json.dumps(call.arguments)
            assert parser.unfinished or json.loads(arguments) == call.arguments, complete


@settings(deadline=None)
@given(
    name=NAMES,
    content=CONTENT,
    calls=CALLS,
    cuts=CUTS,
    damage=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 5), DAMAGE), max_size=3),
    cut=st.booleans(),
)
def test_broken_texts_leak_nothing_and_give_valid_arguments(
    name, content, calls, cuts, damage, cut
):
    text = FORMATS[name].write(content, calls)
    for at, length, instead in damage:
        at %= len(text) + 1
        text = text[:at] + instead + text[at + length :]
    check_same_for_any_split(name, text, cuts, cut=cut)


@settings(deadline=None)
@given(name=NAMES, text=TEXT | st.text(max_size=30), cuts=CUTS)
def test_any_other_text_is_content(name, text, cuts):
    parts = parse(FORMATS[name].make(), split(text, cuts))
    if name == "required":
        check_same_for_any_split(name, text, cuts, cut=False)
    else:
        assert content_of(parts) == text
        assert calls_of(parts) == []


@settings(deadline=None)
@given(arguments=ARGUMENTS, cuts=CUTS, end=st.none() | st.integers(0, 100))
def test_a_named_call_is_its_arguments(arguments, cuts, end):
    text = json.dumps(arguments)
    cut = end is not None
    text = text[:end]
    parser = named()
    parts = parse(parser, split(text, cuts), cut=cut)
    assert parts == parse(named(), [text], cut=cut)
    assert content_of(parts) == ""
    if text:
        ((name, told),) = calls_of(parts)
        assert name == "get_weather"
        assert text.startswith(told) if parser.unfinished else json.loads(told) == arguments


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_every_single_place_of_two_cuts(name):
    calls = [Call("get_weather", {"city": 'A, "b"', "days": 3}), Call("now", {})]
    text = FORMATS[name].write("Hm: " if FORMATS[name].leads else "", calls)
    whole = parse(FORMATS[name].make(), [text])
    for first in range(0, len(text), 3):
        for second in range(first, len(text), 7):
            pieces = [text[:first], text[first:second], text[second:]]
            assert parse(FORMATS[name].make(), pieces) == whole
