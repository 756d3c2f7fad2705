"""What models write besides what they should."""

from __future__ import annotations

import pytest

from atom_lite.config_chat import REASONING_PARSER_NAMES, TOOL_CALL_PARSER_NAMES
from atom_lite.text.reasoning import REASONING_PARSERS
from atom_lite.text.tool_calls.json_scanner import JsonScanner
from atom_lite.text.tool_calls.select import TOOL_CALL_PARSERS, recognise
from tests.fakes.written_calls import FORMATS, calls_of, content_of, parse


def told(name: str, text: str, *, cut: bool = False) -> tuple[str, list[tuple[str, str]]]:
    """Content and calls of a text that comes letter by letter."""
    parts = parse(FORMATS[name].make(), list(text), cut=cut)
    return content_of(parts), calls_of(parts)


def test_every_name_of_the_flags_has_its_parser():
    assert set(TOOL_CALL_PARSER_NAMES) == set(TOOL_CALL_PARSERS)
    assert set(REASONING_PARSER_NAMES) == set(REASONING_PARSERS)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", '<tool_call>{"name": "now"}</tool_call>'),
        ("hermes", '<tool_call>{"name": "now", "arguments": null}</tool_call>'),
        ("hermes", '<tool_call>{"name": "now", "arguments": ""}</tool_call>'),
        ("llama3_json", '{"type": "function", "name": "now", "parameters": {}}'),
        ("llama3_json", '<|python_tag|>{"name": "now"}'),
        ("pythonic", "[now()]"),
        ("pythonic", "<|python_start|>[now()]<|python_end|>"),
        ("mistral", "[TOOL_CALLS]now[ARGS]{}"),
        ("mistral", "[TOOL_CALLS]now[CALL_ID]a1B2c3D4e[ARGS]{}"),
        ("mistral", '[TOOL_CALLS]{"name": "now", "arguments": {}}'),
        ("qwen3_coder", "<tool_call>\n<function=now>\n</function>\n</tool_call>"),
        ("qwen3_coder", "<function=now></function>"),
    ],
)
def test_case_60_a_call_without_arguments_has_an_empty_object(name, text):
    assert told(name, text) == ("", [("now", "{}")])


def test_case_63_arguments_are_text_whatever_the_model_made_of_them():
    for arguments in ('{"city": "Paris"}', '"{\\"city\\": \\"Paris\\"}"'):
        for order in (
            '"name": "get_weather", "arguments": %s',
            '"arguments": %s, "name": "get_weather"',
        ):
            text = "<tool_call>{" + order % arguments + "}</tool_call>"
            assert told("hermes", text) == ("", [("get_weather", '{"city": "Paris"}')])


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('{"city": "Paris"', '{"city": "Paris"}'),  # a bracket forgotten
        ('{"city": "Paris', '{"city": "Paris\\n"}'),  # and a quote, before a line break
        ('{"city": "a\nb", "days": 3,}', '{"city": "a\\nb", "days": 3}'),
        ('{"exact": True, "where": None}', '{"exact": true, "where": null}'),
        ('{"city": "\\d+", "x": oops}', '{"city": "\\\\d+"}'),
        ("{'city': 'Paris'}", "{}"),
        ("Paris", "{}"),
        ("[1]", "{}"),
    ],
)
def test_broken_arguments_keep_what_was_right(text, arguments):
    call = f'<tool_call>\n{{"name": "get_weather", "arguments": {text}\n</tool_call>'
    assert told("hermes", call) == ("", [("get_weather", arguments)])


@pytest.mark.parametrize(
    ("name", "text", "content"),
    [
        ("hermes", "<tool_call>\nnot JSON\n</tool_call> after", "\nnot JSON\n after"),
        ("hermes", '<tool_call>{"city": "Paris"}</tool_call>', '{"city": "Paris"}'),
        (
            "llama3_json",
            '{"name": "unknown", "parameters": {}}',
            '{"name": "unknown", "parameters": {}}',
        ),
        ("llama3_json", '{"answer": 42}', '{"answer": 42}'),
        ("pythonic", "[1, 2, 3]", "[1, 2, 3]"),
        ("pythonic", "[unknown(a=1)]", "[unknown(a=1)]"),
        ("mistral", "[TOOL_CALLS] none", "none"),
        ("required", '{"no": "list"}', '{"no": "list"}'),
    ],
)
def test_what_is_no_call_is_content_without_the_marks(name, text, content):
    assert told(name, text) == (content, [])


def test_text_after_calls_is_content():
    call = '<tool_call>{"name": "now"}'
    assert told("hermes", f"{call}</tool_call>\nDone.\n") == ("Done.\n", [("now", "{}")])
    assert told("hermes", f"{call} Done.") == ("Done.", [("now", "{}")])
    assert told("hermes", call + call) == ("", [("now", "{}"), ("now", "{}")])


def test_a_call_that_was_cut_stays_cut():
    call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}'
    assert told("hermes", call[:12], cut=True) == ("", [])
    assert told("hermes", call[:-13], cut=True) == ("", [("get_weather", '{"city": "Paris"')])
    assert told("hermes", call[:-13]) == ("", [("get_weather", '{"city": "Paris"}')])


def test_arguments_come_without_delay():
    parser = FORMATS["hermes"].make()
    parser.feed('<tool_call>{"name": "get_weather", "arguments": ')
    pieces = ['{"ci', 'ty": "Pa', "ris", '", "days', '": 1', "2", "}"]
    texts = ["".join(part.text for part in parser.feed(piece)) for piece in pieces]
    assert texts == ["{", '"city": "Pa', "ris", '"', "", "", ', "days": 12}']


def test_an_answer_in_json_does_not_wait_for_its_end():
    parser = FORMATS["llama3_json"].make()
    parts = [part for piece in ('{"answer', '": [', "1, ") for part in parser.feed(piece)]
    assert content_of(parts) == '{"answer": [1,'


def test_types_of_xml_values_are_the_schemas():
    def call(key: str, value: str) -> str:
        text = f"<function=get_weather>\n<parameter={key}>\n{value}\n</parameter>\n</function>"
        ((_, arguments),) = told("qwen3_coder", text)[1]
        return arguments

    assert call("city", "12") == '{"city": "12"}'
    assert call("days", "12") == '{"days": 12}'
    assert call("days", "twelve") == '{"days": "twelve"}'
    assert call("exact", "True") == '{"exact": true}'
    assert call("exact", "null") == '{"exact": null}'
    assert call("unknown", "1") == '{"unknown": "1"}'
    assert call("where", '{"a": [1]}') == '{"where": {"a": [1]}}'


def test_nothing_is_too_deep():
    scanner = JsonScanner()
    out, _ = scanner.push("[" * 100_000)
    assert scanner.broken
    assert len(out + scanner.close()) < 1000
    assert told("pythonic", f"[get_weather(tags={'[' * 5000}{']' * 5000})]")[1] == [
        ("get_weather", "{}")
    ]


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("<tool_call>\n<function=example>\n<parameter=x>", "qwen3_coder"),
        ("<tool_call></tool_call>", "hermes"),
        ("[TOOL_CALLS]", "mistral"),
        ('{"name": function name, "parameters": dictionary of argument name and', "llama3_json"),
        ("[func_name1(params_name1=params_value1", "pythonic"),
        ("{{ tools }}", None),
    ],
)
def test_formats_are_recognised_by_what_templates_hold(template, name):
    assert recognise(template) == name
