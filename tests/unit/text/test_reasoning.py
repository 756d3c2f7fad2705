from __future__ import annotations

import pytest

from atom_lite.text.reasoning import (
    REASONING_PARSERS,
    Opening,
    ReasoningSplitter,
    opening_of,
    recognise,
)

QWEN, R1 = REASONING_PARSERS["qwen3"], REASONING_PARSERS["deepseek_r1"]


@pytest.mark.parametrize(
    ("form", "prompt", "opening"),
    [
        (QWEN, "<|im_start|>assistant\n<think>\n", Opening.THOUGHT),
        (QWEN, "<|im_start|>assistant\n<think>\n\n</think>\n\n", Opening.ANSWER),
        (QWEN, "What is <think> for?<|im_start|>assistant\n", Opening.EITHER),
        (R1, "<|Assistant|>", Opening.THOUGHT),
        (R1, "<|Assistant|></think>", Opening.ANSWER),
    ],
)
def test_the_end_of_the_prompt_says_whether_the_model_is_thinking(form, prompt, opening):
    assert opening_of(form, prompt) is opening


def test_a_request_without_thoughts_gets_an_answer_from_the_first_letter():
    assert opening_of(R1, "<|Assistant|>", may_think=False) is Opening.EITHER


def test_case_66_one_piece_with_the_end_of_a_thought_and_the_answer():
    splitter = ReasoningSplitter(R1, Opening.THOUGHT)
    assert splitter.push("A") == ("A", "")
    assert splitter.push(" thought.</think>Answer") == (" thought.", "Answer")


def test_thoughts_come_without_delay_but_for_what_may_be_the_mark():
    splitter = ReasoningSplitter(R1, Opening.THOUGHT)
    assert splitter.push("if a < b ") == ("if a < b ", "")
    assert splitter.push("</th") == ("", "")
    assert splitter.num_held_chars == 4
    assert splitter.push("e end") == ("</the end", "")


def test_an_output_that_is_cut_in_thought_is_all_thought():
    splitter = ReasoningSplitter(QWEN, Opening.EITHER)
    assert splitter.push("<think>\nHm") == ("Hm", "")
    assert splitter.push("\n</thi") == ("", "")
    assert splitter.finish(cut=True) == ("", "")
    assert splitter.thinking


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{{ content.split('</think>')[-1] }}", "qwen3"),
        ("[THINK]...[/THINK]", "mistral"),
        ("{{ messages }}", None),
    ],
)
def test_a_template_that_knows_thoughts_names_their_format(template, name):
    assert recognise(template) == name
