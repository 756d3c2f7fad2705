from __future__ import annotations

import time

import pytest

from atom_lite.errors import RequestError
from atom_lite.text.stop_strings import StopMatcher


def test_text_that_begins_no_stop_is_not_delayed():
    matcher = StopMatcher(["a very long stop string of 60 characters, which never comes ..."])
    assert matcher.push("Hello") == ("Hello", None)
    assert matcher.push(" is a v") == (" is ", None)
    assert matcher.push("ow") == ("a vow", None)


def test_a_false_start_is_sent_once():
    matcher = StopMatcher(["\n", "Alice:"])
    deltas = [matcher.push(part)[0] for part in (" Al", "ice", " is")]
    assert deltas == [" ", "", "Alice is"]
    assert matcher.finish() == ""


def test_what_is_held_comes_with_the_end():
    matcher = StopMatcher(["END"])
    assert matcher.push("the EN") == ("the ", None)
    assert matcher.finish() == "EN"


def test_the_stop_that_ends_first_wins():
    matcher = StopMatcher(["GHI", "H"])
    assert matcher.push("FGHI") == ("FG", "H")


def test_of_stops_that_end_together_the_longest_wins():
    matcher = StopMatcher(["C", "ABC", "BC"])
    assert matcher.push("xABCD") == ("x", "ABC")


def test_the_stop_itself_is_kept_if_asked_for_and_nothing_is_held():
    matcher = StopMatcher(["STOP"], include_in_output=True)
    assert matcher.push("a ST") == ("a ST", None)
    assert matcher.push("OP b") == ("OP", "STOP")


def test_an_empty_stop_is_refused():
    with pytest.raises(RequestError, match="must not be empty"):
        StopMatcher(["x", ""])


def test_hundreds_of_long_alike_stops_cost_no_more_than_the_text():
    """Quadratic work would be 400 stops x 4000 letters x 20,000 letters of text: hours."""
    stops = ["a" * (3000 + i) + "b" for i in range(400)]
    began = time.perf_counter()
    matcher = StopMatcher(stops)
    text = ("a" * 2999 + "c") * 6 + "a" * 3399
    sent = "".join(matcher.push(text[at : at + 4])[0] for at in range(0, len(text), 4))
    assert sent == text[:-3399]
    assert matcher.push("b") == ("", stops[-1])
    assert time.perf_counter() - began < 10
