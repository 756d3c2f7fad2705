"""The accuracy benchmark's questions: the same for a seed, and marked strictly."""

import pytest

from benchmarks.tasks import FACTS, KINDS, QUICK_MIX, Item, Mix, make_items


def test_the_same_seed_makes_the_same_items() -> None:
    assert make_items(QUICK_MIX, 3) == make_items(QUICK_MIX, 3)
    assert make_items(QUICK_MIX, 3) != make_items(QUICK_MIX, 4)


def test_a_larger_mix_begins_with_the_smaller_ones_items() -> None:
    few, more = Mix(copying=3, sums=0, contexts=()), Mix(copying=5, sums=0, contexts=())
    assert make_items(more, 0)[:3] == make_items(few, 0)


def test_the_protocol_asks_500_different_questions_of_three_kinds() -> None:
    items = make_items(Mix(), 0)
    assert len(items) >= 500
    assert {item.kind for item in items} == set(KINDS)
    prompts = {item.context + item.question for item in items}
    assert len(prompts) >= 0.99 * len(items)


def test_questions_of_a_context_share_it_and_it_holds_every_answer() -> None:
    items = [item for item in make_items(Mix(), 0) if item.kind == "retrieval"]
    for group in {item.group for item in items}:
        same = [item for item in items if item.group == group]
        (context,) = {item.context for item in same}
        assert len({item.answer for item in same}) == FACTS
        for item in same:
            assert f"lives in {item.answer}." in context


def test_contexts_span_two_to_six_thousand_tokens() -> None:
    items = make_items(Mix(), 0)
    characters = sorted({len(item.context) for item in items if item.group >= 0})
    assert characters[0] > 7_000
    assert characters[-1] > 23_000


@pytest.mark.parametrize(
    ("reply", "right"),
    [
        (" Rome", True),
        (" Rome.\nmore", True),
        (" Rome. The home of", True),
        (" Romeo", False),
        (" in Rome", False),
        ("\n\n", False),
        ("", False),
    ],
)
def test_a_reply_is_right_if_its_first_sentence_is_the_answer(reply: str, right: bool) -> None:
    item = Item("retrieval", "", "Anna lives in", "Rome", max_tokens=5)
    assert item.is_right(reply) is right
