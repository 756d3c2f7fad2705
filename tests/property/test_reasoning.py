"""Thoughts and answer, however the text that holds both arrives."""

from __future__ import annotations

import itertools

from hypothesis import example, given, settings
from hypothesis import strategies as st

from atom_lite.text.reasoning import REASONING_PARSERS, Opening, ReasoningSplitter

PIECES = st.sampled_from(["a ", "b\n", "\n\n", "<", "</", "think>", "<think", " ", "[", "He", "x"])
TEXT = st.lists(PIECES, max_size=12).map("".join)
NAMES = st.sampled_from(sorted(REASONING_PARSERS))
CUTS = st.lists(st.integers(0, 80), max_size=10)
OPENINGS = st.sampled_from(list(Opening))


def run(splitter: ReasoningSplitter, pieces: list[str], *, cut: bool = False) -> tuple[str, str]:
    thoughts, answers, num_chars = [], [], 0
    for piece in pieces:
        num_chars += len(piece)
        thought, answer = splitter.push(piece)
        assert not (thought and answers), "a thought after the answer began"
        assert splitter.num_held_chars <= num_chars
        thoughts.append(thought)
        answers += [answer] if answer else []
    thought, answer = splitter.finish(cut=cut)
    return "".join([*thoughts, thought]), "".join([*answers, answer])


def split(text: str, cuts: list[int]) -> list[str]:
    bounds = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    return [text[start:end] for start, end in itertools.pairwise(bounds)]


@settings(deadline=None)
@given(name=NAMES, opening=OPENINGS, thought=TEXT, answer=TEXT, opens=st.booleans(), cuts=CUTS)
@example("qwen3", Opening.THOUGHT, " thought.", "Answer", False, [])
def test_marks_divide_thought_and_answer_for_any_split(name, opening, thought, answer, opens, cuts):
    form = REASONING_PARSERS[name]
    thought = thought.replace(form.end, "").replace(form.start, "")
    text = (form.start if opens else "") + thought + form.end + answer
    told = run(ReasoningSplitter(form, opening), split(text, cuts))
    if opening is Opening.ANSWER or (opening is Opening.EITHER and not opens):
        assert told == ("", text) or thought.lstrip().startswith(form.start)
    elif form.end not in thought + form.end[:-1]:
        assert told == (thought.strip("\r\n"), answer.lstrip("\r\n"))
    assert run(ReasoningSplitter(form, opening), list(text)) == told


@settings(deadline=None)
@given(name=NAMES, opening=OPENINGS, text=TEXT, cuts=CUTS, cut=st.booleans())
def test_any_text_is_the_same_for_any_split(name, opening, text, cuts, cut):
    form = REASONING_PARSERS[name]
    whole = run(ReasoningSplitter(form, opening), [text], cut=cut)
    assert run(ReasoningSplitter(form, opening), list(text), cut=cut) == whole
    assert run(ReasoningSplitter(form, opening), split(text, cuts), cut=cut) == whole
    if opening is not Opening.ANSWER:
        assert form.end not in whole[0]
    if cut:
        assert not whole[0].endswith(form.end[:-1])
