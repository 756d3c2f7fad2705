"""What is compiled keeps to what was asked, by whichever library; the rest is refused in words."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher
from xgrammar import Grammar as XgrammarGrammar
from xgrammar import GrammarCompiler as XgrammarCompiler
from xgrammar import GrammarMatcher

from atom_lite.engine import grammar_trial
from atom_lite.engine.grammar_compiler import GrammarCompiler
from atom_lite.engine.grammar_guidance import MAX_WHITESPACE_CHARS
from atom_lite.errors import RequestError
from atom_lite.ipc.grammar_messages import GrammarSpec
from atom_lite.worker.grammar_vocabulary import guidance_vocabulary, xgrammar_vocabulary

if TYPE_CHECKING:
    from collections.abc import Callable

PIECES = [*(bytes([byte]) for byte in range(256)), b""]
EOS = 256
BACKENDS = ("auto", "xgrammar", "guidance")
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
}


@cache
def compiler(backend: str) -> GrammarCompiler:
    return GrammarCompiler(PIECES, [EOS], backend)


@cache
def vocabularies() -> tuple[Any, Any]:
    return xgrammar_vocabulary(PIECES, [EOS]), guidance_vocabulary(PIECES, [EOS])


def matcher(backend: str, compiled: bytes) -> Callable[[str], bool]:
    """Whether a compiled grammar takes a whole text, read as the last stage reads it."""
    for_xgrammar, for_guidance = vocabularies()
    if backend == "guidance":
        first = LLMatcher(for_guidance, compiled.decode(), log_level=0)

        def takes(text: str) -> bool:
            ids = list(text.encode())
            copy = first.deep_copy()
            return copy.try_consume_tokens(ids) == len(ids) and copy.is_accepting()

        return takes
    lazy = XgrammarCompiler(for_xgrammar, cache_enabled=False, enable_dynamic_compilation=True)
    grammar = lazy.compile_grammar(XgrammarGrammar.deserialize_json(compiled.decode()))

    def accepts(text: str) -> bool:
        follower = GrammarMatcher(grammar)
        return follower.accept_string(text) and follower.is_completed()

    return accepts


def compiled(backend: str, kind: Any, text: Any, **options: Any) -> tuple[str, bytes]:
    text = text if isinstance(text, str) else json.dumps(text)
    return compiler(backend).compile(GrammarSpec(kind=kind, text=text, **options))


def taking(backend: str, kind: Any, text: Any, **options: Any) -> Callable[[str], bool]:
    return matcher(*compiled(backend, kind, text, **options))


def refusal(backend: str, kind: Any, text: Any, **options: Any) -> str:
    with pytest.raises(RequestError) as caught:
        compiled(backend, kind, text, **options)
    assert "\n" not in caught.value.message
    return caught.value.message


@pytest.mark.parametrize("backend", BACKENDS)
def test_json_schema_is_kept(backend: str) -> None:
    takes = taking(backend, "json_schema", PERSON)
    assert takes('{"name": "é", "age": 3}')
    assert takes('{\n  "name": "\\n",\n  "age": 30\n}')
    for wrong in ('{"name": "a"}', '{"name": "a", "age": -1}', '{"name":"a","age":1,"b":2}', "3"):
        assert not takes(wrong), wrong


@pytest.mark.parametrize("backend", BACKENDS)
def test_whitespace_is_bounded_and_can_be_turned_off(backend: str) -> None:
    takes = taking(backend, "json_schema", PERSON)
    assert takes('{"name":' + " " * MAX_WHITESPACE_CHARS + '"a", "age": 3}')
    assert not takes('{"name":' + " " * (MAX_WHITESPACE_CHARS + 1) + '"a", "age": 3}')
    compact = taking(backend, "json_schema", PERSON, any_whitespace=False)
    assert not compact('{"name":  "a","age":3}')
    assert compact('{"name": "a", "age": 3}') or compact('{"name":"a","age":3}')


def test_whitespace_pattern_is_kept_and_needs_guidance() -> None:
    takes = taking("auto", "json_schema", PERSON, whitespace_pattern="[ ]?")
    assert takes('{"name": "a","age":3}')
    assert not takes('{"name":\n"a","age":3}')
    assert "whitespace_pattern" in refusal(
        "xgrammar", "json_schema", PERSON, whitespace_pattern=" "
    )


# Constraints that xgrammar passes over in silence: (schema, takes, takes not).
STRICT = [
    ({"type": "string", "pattern": "a+"}, ["xaay"], ["b"]),
    ({"type": "string", "pattern": "^a+$", "maxLength": 3}, ["aa"], ["aaaa"]),
    ({"type": "string", "enum": ["a", 1]}, ["a"], [1]),
    ({"minimum": 3}, [3, "a"], [2]),
    ({"type": "number", "multipleOf": 0.5}, [1.5], [1.3]),
    ({"type": "integer", "anyOf": [{"minimum": 3}, {"maximum": 0}]}, [3, -1], [1, "a"]),
    ({"allOf": [{"type": "integer"}, {"minimum": 2}]}, [2], [1, "a"]),
    ({"$defs": {"x": {"type": "integer"}}, "$ref": "#/$defs/x", "minimum": 3}, [3], [1]),
    ({"type": "object", "required": ["z"]}, [{"z": 1}], [{}, {"a": 1}]),
    (
        {"type": "object", "patternProperties": {"^x": {"type": "integer"}}},
        [{"xa": 1}],
        [{"x": 0.5}],
    ),
    ({"const": {"a": [1]}}, [{"a": [1]}], [{}]),
    ({"type": "string", "format": "date"}, ["2020-02-29"], ["2020-2-2", "x"]),
    ({"type": "string", "format": "no-such"}, ["x"], [1]),
    ({"type": "integer", "minimum": 2.5}, [3], [2]),
]


@pytest.mark.parametrize("backend", ["auto", "guidance"])
@pytest.mark.parametrize(("schema", "good", "bad"), STRICT, ids=[str(row[0]) for row in STRICT])
def test_constraint_that_xgrammar_ignores_is_kept(
    backend: str, schema: Any, good: list[Any], bad: list[Any]
) -> None:
    takes = taking(backend, "json_schema", schema)
    for value in good:
        assert takes(json.dumps(value)), value
    for value in bad:
        assert not takes(json.dumps(value)), value


@pytest.mark.parametrize("schema", [row[0] for row in STRICT if "format" not in row[0]], ids=str)
def test_constraint_that_xgrammar_ignores_is_refused_where_only_it_may_be_used(schema: Any) -> None:
    assert "not supported by xgrammar" in refusal("xgrammar", "json_schema", schema)


SHORT = {"type": "string", "minLength": 2, "maxLength": 3}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("schema", [SHORT, {"type": "string", "minLength": 2}], ids=str)
def test_bounded_string_has_no_raw_control_characters(backend: str, schema: Any) -> None:
    takes = taking(backend, "json_schema", schema)
    assert takes('"a\u00e9"')
    assert takes('"x\u65e5\u672c"')
    for code in range(32):
        assert not takes(f'"a{chr(code)}"'), code
    for wrong in ('"a"', '"a""', '"a\\"'):
        assert not takes(wrong)


@pytest.mark.parametrize("least", [0, 1])
def test_string_of_one_character_has_no_raw_control_character(least: int) -> None:
    takes = taking(
        "xgrammar", "json_schema", {"type": "string", "minLength": least, "maxLength": 1}
    )
    assert takes('"a"')
    assert not any(takes(f'"{chr(code)}"') for code in range(32))


def test_bounded_string_of_a_tag_has_no_raw_control_characters() -> None:
    both = [{"begin": f"<f{name}", "schema": SHORT, "end": "\x01b</f>"} for name in "12"]
    takes = taking("auto", "structural_tag", {**OLD_TAG, "structures": both})
    assert takes('free text <f1"ab"\x01b</f> and <f2"abc"\x01b</f> more')
    for wrong in ("a\t", "abcd"):
        assert not takes(f'<f1"{wrong}"\x01b</f>')
        assert not takes(f'<f2"{wrong}"\x01b</f>')


BOUND = st.integers(-120, 120)


@given(
    st.dictionaries(
        st.sampled_from(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]),
        BOUND,
        min_size=1,
    ),
    st.lists(st.integers(-130, 130), max_size=20),
)
def test_xgrammar_keeps_bounds_of_integers(bounds: dict[str, int], values: list[int]) -> None:
    schema = {"type": "integer", **bounds}
    try:
        takes = taking("xgrammar", "json_schema", schema)
    except RequestError:
        assert not any(
            jsonschema.validators.Draft202012Validator(schema).is_valid(v) for v in values
        )
        return
    valid = jsonschema.validators.Draft202012Validator(schema).is_valid
    assert [takes(str(value)) for value in values] == [valid(value) for value in values]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "schema",
    [
        False,
        {"$ref": "#"},
        {"type": "integer", "minimum": 5, "maximum": 3},
        {"type": "string", "minLength": 5, "maxLength": 3},
        {"enum": []},
        {"type": "object", "properties": {}, "required": ["a"], "additionalProperties": False},
        {"type": "nonsense"},
        {"$ref": "#/$defs/nowhere"},
        {"type": "string", "minLength": "x"},
    ],
    ids=str,
)
def test_schema_that_nothing_can_meet_is_refused(backend: str, schema: Any) -> None:
    assert "NoExtension" not in refusal(backend, "json_schema", schema)


def test_one_of_whose_choices_may_overlap_is_refused() -> None:
    message = refusal("auto", "json_schema", {"oneOf": [{"type": "integer"}, {"type": "number"}]})
    assert "oneOf" in message
    assert "coerce" not in message
    takes = taking("auto", "json_schema", {"oneOf": [{"type": "integer"}, {"type": "string"}]})
    assert takes("1")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "choices",
    [
        ["yes", "no"],
        ['é\n"q"\\', "日本\t😀"],
        ["a" * 2000, "\x00\x7f", "\nb1\x00c"],
        ["a", "ab", "abc"],
    ],
)
def test_choice_takes_the_choices_and_nothing_else(backend: str, choices: list[str]) -> None:
    takes = taking(backend, "choice", choices)
    assert all(takes(choice) for choice in choices)
    assert not takes("")
    assert not takes(choices[0] + choices[0])


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        ("[a-z]+@x\\.(com|org)", ["a@x.com"], ["a@x.net", "@x.com", "a@x.com "]),
        ("^ab?$", ["a", "ab"], ["b"]),
        ("a/b\\/c", ["a/b/c"], ["ab"]),
        ("a\\\\b", ["a\\b"], ["ab"]),
        ("\\d{4}-\\d{2}", ["2020-01"], ["2020-1"]),
        ("[^\n]+", ["x y"], ["x\ny"]),
        ("x\\\ny", ["x\ny"], ["xy"]),
    ],
)
def test_regex_matches_the_whole_output(pattern: str, good: list[str], bad: list[str]) -> None:
    takes = taking("auto", "regex", pattern)
    assert [takes(text) for text in good] == [True] * len(good)
    assert [takes(text) for text in bad] == [False] * len(bad)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("pattern", ["(", "(?=a)b", "(a)\\1", "a^b", "\\bx"])
def test_regex_that_would_be_misread_is_refused(backend: str, pattern: str) -> None:
    assert refusal(backend, "regex", pattern)


@pytest.mark.parametrize("backend", ["auto", "xgrammar"])
def test_gbnf_grammar_is_kept(backend: str) -> None:
    takes = taking(backend, "grammar", 'root ::= "a" root | "b"')
    assert takes("aab")
    assert not takes("aa")


@pytest.mark.parametrize("backend", BACKENDS)
def test_lark_grammar_is_kept(backend: str) -> None:
    takes = taking(backend, "grammar", 'start: "a" start | "b"')
    assert takes("aab")
    assert not takes("aa")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("text", ["hello", "start: nowhere", "root ::= root", "root ::= nowhere"])
def test_grammar_that_is_none_is_refused(backend: str, text: str) -> None:
    assert refusal(backend, "grammar", text)


def test_settings_of_the_library_are_not_the_clients() -> None:
    assert "%llguidance" in refusal("auto", "grammar", '%llguidance {}\nstart: "a"')


OLD_TAG = {
    "type": "structural_tag",
    "structures": [{"begin": "<f>", "schema": PERSON, "end": "</f>"}],
    "triggers": ["<f"],
}
NEW_TAG = {
    "type": "structural_tag",
    "format": {
        "type": "triggered_tags",
        "triggers": ["<f"],
        "tags": [
            {
                "type": "tag",
                "begin": "<f>",
                "content": {"type": "json_schema", "json_schema": PERSON},
                "end": "</f>",
            }
        ],
    },
}


@pytest.mark.parametrize("tag", [OLD_TAG, NEW_TAG], ids=["old", "new"])
def test_structural_tag_is_kept_in_both_forms(tag: Any) -> None:
    takes = taking("auto", "structural_tag", tag)
    assert takes('free text <f>{"name": "a", "age": 1}</f> and more')
    assert not takes('<f>{"name": "a", "other": 1}</f>')


@pytest.mark.parametrize(
    ("tag", "named"),
    [
        ({"type": "structural_tag", "format": {"type": "nope"}}, "nope"),
        ("{", "JSON"),
        ("3", "object"),
        ({"structures": [3]}, "structures"),
        ({**OLD_TAG, "structures": [{"begin": "<f>", "schema": {"not": {}}}]}, "#/not"),
        ({**OLD_TAG, "structures": [{"begin": "<f>", "schema": {"pattern": "a"}}]}, "tag"),
    ],
)
def test_structural_tag_that_cannot_be_kept_is_refused(tag: Any, named: str) -> None:
    assert named in refusal("auto", "structural_tag", tag)


def test_guidance_alone_says_what_needs_the_other() -> None:
    for kind, text in (("structural_tag", OLD_TAG), ("grammar", 'root ::= "a"')):
        assert "--structured-outputs-backend" in refusal("guidance", kind, text)


def wide(num_properties: int) -> dict[str, Any]:
    names = [f"property_{number}" for number in range(num_properties)]
    return {"type": "object", "properties": {name: {"type": "string"} for name in names}}


@pytest.mark.parametrize(
    "schema",
    [PERSON, wide(60), {"type": "object"}, {"type": "array", "items": PERSON}],
    ids=["person", "60 properties", "any object", "array"],
)
def test_an_ordinary_schema_is_xgrammars_and_small(schema: Any) -> None:
    backend, rules = compiled("auto", "json_schema", schema)
    assert backend == "xgrammar"
    assert len(rules) < 64_000
    assert taking("auto", "json_schema", wide(60))('{\n  "property_7": "x"\n}')


def test_a_long_schema_is_guidances_unless_only_xgrammar_may_be_used() -> None:
    assert compiled("auto", "json_schema", wide(500))[0] == "guidance"
    assert compiled("xgrammar", "json_schema", wide(500))[0] == "xgrammar"


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ("MAX_MASK_BYTES", "its masks take"),
        ("MAX_LOAD_SECONDS", "reading it takes"),
        ("MAX_TOKEN_SECONDS", "finding the tokens"),
    ],
)
def test_what_costs_xgrammar_too_much_is_guidances_or_refused(
    monkeypatch: pytest.MonkeyPatch, limit: str, words: str
) -> None:
    monkeypatch.setattr(grammar_trial, limit, 0)
    assert compiled("auto", "json_schema", PERSON)[0] == "guidance"
    assert words in refusal("xgrammar", "json_schema", PERSON)
    assert words in refusal("auto", "grammar", 'root ::= "a" root | "b"')


def test_a_trial_ends_where_no_token_goes_on() -> None:
    takes = taking("xgrammar", "choice", ["only this"])
    assert takes("only this")
    assert "no output" in refusal("xgrammar", "grammar", "root ::= root")
