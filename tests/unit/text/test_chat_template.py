from __future__ import annotations

import copy
import functools
import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from atom_lite.errors import ConfigError, RequestError
from atom_lite.text.chat_template import ChatTemplate, check_template_kwargs
from atom_lite.text.checkpoint_files import TokenizerFiles
from atom_lite.text.tokenizer import Tokenizer
from tests.fakes.vocabularies import byte_fallback_tokenizer, smollm_tokenizer

BOS, EOS = "<s>", "</s>"

# Written after the templates of the families that they are named after.
DIRECTORY = Path(__file__).parent / "templates"
CHATML, LLAMA3, MISTRAL, QWEN = (
    (DIRECTORY / f"{name}.jinja").read_text() for name in ("chatml", "llama3", "mistral", "qwen")
)

TEMPLATES = {
    "smollm2": smollm_tokenizer().chat_template,
    "chatml": CHATML,
    "llama3": LLAMA3,
    "mistral": MISTRAL,
    "qwen": QWEN,
}

TOOLS = [
    {
        "type": "function",
        "function": {"name": "f", "description": "a <b> & 'ü'", "parameters": {"type": "object"}},
    }
]
CALL = {"type": "function", "function": {"name": "f", "arguments": {"x": "<é>", "y": [1, None]}}}

CHATS = {
    "one": [{"role": "user", "content": "hi"}],
    "system": [{"role": "system", "content": " be <b>\n"}, {"role": "user", "content": "  hi  "}],
    "long": [
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": "日本語 {{ 7 * 7 }} {% if %} </s>"},
    ],
    "reasoning": [
        {"role": "user", "content": "2+2?"},
        {
            "role": "assistant",
            "content": "4",
            "reasoning": "two\n",
            "tool_calls": None,
            "name": None,
        },
        {"role": "user", "content": "and?"},
    ],
    "calls": [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": '{"ok": "ü"}'},
    ],
}


@functools.cache
def theirs(template: str) -> PreTrainedTokenizerFast:
    """Transformers' side of a comparison."""
    return PreTrainedTokenizerFast(
        tokenizer_object=byte_fallback_tokenizer().backend,
        bos_token=BOS,
        eos_token=EOS,
        chat_template=template,
    )


def ours(template: str) -> ChatTemplate:
    return ChatTemplate(template, bos_token=BOS, eos_token=EOS)


# ---------------------------------------------------------------- as transformers


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize(
    "options", [{}, {"tools": TOOLS}, {"enable_thinking": False}, {"bos_token": "B"}]
)
def test_prompts_equal_those_of_transformers(name, chat, options):
    reference = theirs(TEMPLATES[name])
    template = ours(TEMPLATES[name])
    messages = copy.deepcopy(CHATS[chat])
    for generation_prompt in (True, False):
        expected = reference.apply_chat_template(
            CHATS[chat], tokenize=False, add_generation_prompt=generation_prompt, **options
        )
        rendered = template.render(messages, add_generation_prompt=generation_prompt, **options)
        assert rendered == expected
    assert messages == CHATS[chat]


@settings(deadline=None, max_examples=20)
@given(content=st.text(max_size=30), answer=st.text(min_size=1, max_size=30))
def test_any_content_is_rendered_as_by_transformers(content, answer):
    chat = [{"role": "user", "content": content}, {"role": "assistant", "content": answer}]
    for template in (CHATML, MISTRAL, QWEN):
        assert ours(template).render(chat) == theirs(template).apply_chat_template(
            chat, tokenize=False, add_generation_prompt=True
        )


PARTS = [{"type": "text", "text": "one"}, {"type": "text", "text": "two "}]
JOIN_PARTS = """\
{% for message in messages %}{% if message.content is string %}{{ message.content }}{% else %}
{% for part in message.content %}{{ part.text }}|{% endfor %}{% endif %}<end>{% endfor %}"""


@pytest.mark.parametrize(
    ("template", "content"),
    [
        *itertools.product(
            (CHATML, MISTRAL, QWEN, JOIN_PARTS), ("The answer is", "  spaced  ", "twice twice")
        ),
        (JOIN_PARTS, PARTS),
    ],
)
def test_a_continued_message_ends_as_in_transformers(template, content):
    chat = [{"role": "user", "content": "q"}, {"role": "assistant", "content": content}]
    expected = theirs(template).apply_chat_template(
        chat, tokenize=False, continue_final_message=True
    )
    rendered = ours(template).render(chat, add_generation_prompt=False, continue_final_message=True)
    assert rendered == expected
    assert chat[1]["content"] == content


def test_the_day_is_known_to_templates():
    template = "{{ strftime_now('%Y') }}"
    assert ours(template).render([]) == theirs(template).apply_chat_template(
        CHATS["one"], tokenize=False
    )


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("template", "messages", "message"),
    [
        (MISTRAL, [{"role": "assistant", "content": "x"}], "roles must alternate"),
        (MISTRAL, [], "no element 0"),
        ("{{ 1 // 0 }}", [], "zero"),
        ("{{ messages[0].x.y }}", [{}], "no attribute 'x'"),
        ("{{ missing | tojson }}", [], "serializable"),
        ("{% set ns = namespace(_x=1) %}", [], "_x"),
        ("{{ ''.__class__.__mro__ }}", [], "unsafe"),
        ("{{ messages.append(1) }}", [], "unsafe|not safely"),
    ],
)
def test_what_the_template_refuses_is_the_clients_fault(template, messages, message):
    with pytest.raises(RequestError, match=message) as caught:
        ours(template).render(messages)
    assert (caught.value.status, caught.value.param) == (400, "messages")


@pytest.mark.parametrize(
    ("messages", "template"),
    [
        ([], CHATML),
        ([{"role": "assistant", "tool_calls": [CALL]}], CHATML),
        ([{"role": "assistant", "content": [{"type": "image_url"}]}], JOIN_PARTS),
        ([{"role": "assistant", "content": "x"}], "nothing of the content"),
        ([{"role": "assistant", "content": "x"}], "no messages"),
    ],
)
def test_a_message_that_cannot_be_continued_is_refused(messages, template):
    with pytest.raises(RequestError, match="cannot continue"):
        ours(template).render(messages, add_generation_prompt=False, continue_final_message=True)


def test_continuing_and_starting_a_message_exclude_each_other():
    with pytest.raises(RequestError, match="starts another one"):
        ours(CHATML).render(CHATS["long"][:2], continue_final_message=True)


def test_extra_arguments_cannot_stand_in_for_the_messages():
    with pytest.raises(RequestError, match="'documents'"):
        check_template_kwargs({"documents": [], "x": 1})
    with pytest.raises(RequestError, match="'messages'"):
        ours(CHATML).render([], messages=[])
    assert ours("{{ x }}").render([], x=1) == "1"


def test_a_syntax_error_is_the_operators_fault():
    with pytest.raises(ConfigError, match="line 2"):
        ours("{% if x %}\n{% endfor %}")


# ---------------------------------------------------------------- choice of template


def test_special_tokens_that_a_model_lacks_are_undefined_not_none():
    assert ChatTemplate("[{{ bos_token }}]").render([]) == "[]"


def test_a_models_own_template_for_tools_is_used_with_tools():
    tokenizer = Tokenizer(
        TokenizerFiles(
            backend=byte_fallback_tokenizer().backend,
            special_tokens={"eos_token": EOS, "pad_token": "P"},
            chat_templates={"default": "plain {{ eos_token + pad_token }}", "tool_use": "tools"},
        )
    )
    template = ChatTemplate.from_tokenizer(tokenizer)
    assert template.render([]) == "plain </s>P"
    assert template.render([], tools=TOOLS) == "tools"
    assert ChatTemplate.from_tokenizer(tokenizer, "mine").render([], tools=TOOLS) == "mine"


def test_a_model_without_a_template_has_none():
    assert ChatTemplate.from_tokenizer(byte_fallback_tokenizer()) is None


def test_bos_is_there_once_at_most():
    """The template writes BOS itself, so its text is encoded without special tokens."""
    tokenizer = byte_fallback_tokenizer()
    text = ours(LLAMA3).render(CHATS["one"])
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert ids.count(tokenizer.bos_token_id) == 1
