"""The incremental stop matcher against its definition, for any split."""

from __future__ import annotations

import itertools

from hypothesis import example, given, settings
from hypothesis import strategies as st

from atom_lite.text.stop_strings import StopMatcher

LETTERS = st.sampled_from("aab\u00e9")
TEXTS = st.text(LETTERS, max_size=30)
STOPS = st.lists(st.text(LETTERS, min_size=1, max_size=6), max_size=6)


def first_stop(text: str, stops: list[str]) -> tuple[int, str] | None:
    """Where and with what the text ends, by definition: first last letter, then longest stop."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return end, max(ending, key=len)
    return None


def must_hold(text: str, stops: list[str]) -> int:
    """How many letters at the end are a proper beginning of some stop."""
    return max(
        (n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])), default=0
    )


@settings(deadline=None)
@given(text=TEXTS, stops=STOPS, cuts=st.lists(st.integers(0, 30)), include=st.booleans())
@example(text="aaaab", stops=["aab", "aaab", "b"], cuts=[], include=False)
def test_matcher_follows_its_definition_for_any_split(text, stops, cuts, include):
    matcher = StopMatcher(stops, include_in_output=include)
    expected = first_stop(text, stops)
    bounds = sorted({0, len(text), *(c for c in cuts if c < len(text))})
    sent = ""
    for start, end in itertools.pairwise(bounds):
        safe, stop = matcher.push(text[start:end])
        sent += safe
        if expected is not None and end >= expected[0]:
            cut = expected[0] if include else expected[0] - len(expected[1])
            assert (sent, stop) == (text[:cut], expected[1])
            assert matcher.push("more") == ("", None)
            assert matcher.finish() == ""
            return
        assert stop is None
        assert sent == text[: end if include else end - must_hold(text[:end], stops)]
    assert expected is None
    assert sent + matcher.finish() == text


@settings(deadline=None)
@given(text=TEXTS, stops=STOPS, unarmed=st.integers(0, 30))
def test_stops_that_end_while_unarmed_pass_as_text(text, stops, unarmed):
    matcher = StopMatcher(stops)
    sent, found = "", None
    for index, letter in enumerate(text):
        safe, found = matcher.push(letter, armed=index >= unarmed)
        sent += safe
        if found is not None:
            break
    ends = [
        (end, stop)
        for end in range(unarmed + 1, len(text) + 1)
        for stop in sorted(stops, key=len, reverse=True)
        if text[:end].endswith(stop)
    ]
    if not ends:
        assert found is None
        assert sent + matcher.finish() == text
        return
    end, longest = ends[0]
    assert found == longest or (found is not None and longest.endswith(found))
    assert sent == text[: end - len(found)]
