"""Each way of stating the form of an output, and what is wrong with others, up to the compiler."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from atom_lite.api import structured
from atom_lite.api.schema_structured import MAX_CHOICES
from atom_lite.api.structured import MAX_SPEC_BYTES
from atom_lite.errors import EngineError, RequestError
from atom_lite.ipc.grammar_messages import GrammarSpec
from atom_lite.messages import Grammar
from tests.unit.api.serving import in_memory, run, saying

if TYPE_CHECKING:
    from collections.abc import Callable

SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "string"}}}
TAG = {"type": "structural_tag", "format": {"type": "any_text"}}
OLD_TAG = {"structures": [{"begin": "<f>", "schema": {}, "end": "</f>"}], "triggers": ["<f"]}


class FakeGrammars:
    """A compiler that takes everything, or refuses with what a test says."""

    def __init__(self, fault: Exception | None = None) -> None:
        self.specs: list[GrammarSpec] = []
        self.fault = fault

    async def compile(self, spec: GrammarSpec) -> Grammar:
        self.specs.append(spec)
        if self.fault is not None:
            raise self.fault
        return Grammar(key=spec.text, backend="guidance", compiled=b"")


def spec(kind: Any, value: Any, **options: Any) -> GrammarSpec:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return GrammarSpec(kind=kind, text=text, **options)


def named(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}


ANY_OBJECT = spec("json_schema", {"type": "object"})
STATED = [
    ({"response_format": {"type": "json_object"}}, ANY_OBJECT),
    ({"response_format": {"type": "json_object", "schema": SCHEMA}}, spec("json_schema", SCHEMA)),
    ({"response_format": named(SCHEMA)}, spec("json_schema", SCHEMA)),
    ({"response_format": named(False)}, spec("json_schema", False)),
    ({"response_format": TAG}, spec("structural_tag", TAG)),
    (
        {"response_format": {"type": "structural_tag", **OLD_TAG}},
        spec("structural_tag", {"type": "structural_tag", **OLD_TAG}),
    ),
    ({"structured_outputs": {"json": SCHEMA}}, spec("json_schema", SCHEMA)),
    ({"structured_outputs": {"json": '{"a" : 1}'}}, spec("json_schema", '{"a" : 1}')),
    ({"structured_outputs": {"json": False}}, spec("json_schema", False)),
    ({"structured_outputs": {"regex": "a+"}}, spec("regex", "a+")),
    ({"structured_outputs": {"choice": ["é", "b"]}}, spec("choice", ["é", "b"])),
    ({"structured_outputs": {"grammar": "root ::= 'a'"}}, spec("grammar", "root ::= 'a'")),
    ({"structured_outputs": {"json_object": True, "regex": None}}, ANY_OBJECT),
    ({"structured_outputs": {"structural_tag": TAG}}, spec("structural_tag", TAG)),
    ({"structured_outputs": {"structural_tag": "{}"}}, spec("structural_tag", "{}")),
    (
        {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}},
        spec("json_schema", SCHEMA, any_whitespace=False),
    ),
    (
        {"structured_outputs": {"json": SCHEMA, "whitespace_pattern": " ?"}},
        spec("json_schema", SCHEMA, whitespace_pattern=" ?"),
    ),
    (
        {"structured_outputs": {"json": SCHEMA, "disable_additional_properties": True}},
        spec("json_schema", SCHEMA, close_objects=True),
    ),
    ({"guided_json": SCHEMA}, spec("json_schema", SCHEMA)),
    ({"guided_json": '{"type": "null"}'}, spec("json_schema", {"type": "null"})),
    (
        {"guided_json": SCHEMA, "guided_whitespace_pattern": " "},
        spec("json_schema", SCHEMA, whitespace_pattern=" "),
    ),
    ({"guided_regex": "a"}, spec("regex", "a")),
    ({"guided_choice": ["a"]}, spec("choice", ["a"])),
    ({"guided_grammar": "start: A", "guided_decoding_backend": "x"}, spec("grammar", "start: A")),
    ({"guided_json_object": True}, ANY_OBJECT),
    ({"json_schema": '{"type": "null"}'}, spec("json_schema", {"type": "null"})),
    ({"regex": "a"}, spec("regex", "a")),
    ({"ebnf": "root ::= a"}, spec("grammar", "root ::= a")),
    ({"grammar": "root ::= a"}, spec("grammar", "root ::= a")),
    ({"structural_tag": TAG}, spec("structural_tag", TAG)),
]


@pytest.mark.parametrize(("fields", "wanted"), STATED, ids=[str(row[0]) for row in STATED])
@pytest.mark.parametrize("path", ["chat", "complete"])
def test_stated_form_becomes_a_grammar_of_the_sequence(tokenizer, path, fields, wanted) -> None:
    async def scenario() -> None:
        grammars = FakeGrammars()
        async with in_memory(saying("x"), tokenizer, grammars=grammars) as served:
            ask: Callable[..., Any] = getattr(served, path)
            answer = await ask(**fields)
            assert answer.status_code == 200, answer.text
            assert grammars.specs == [wanted]
            assert served.engine.submitted[0].grammar.key == wanted.text

    run(scenario())


NOTHING = [
    {},
    {"response_format": {"type": "text"}},
    {"response_format": None, "structured_outputs": None},
    {"guided_json_object": False},
    {"grammar": ""},
]


@pytest.mark.parametrize("fields", NOTHING, ids=str)
def test_request_without_a_form_needs_no_compiler(tokenizer, fields) -> None:
    async def scenario() -> None:
        async with in_memory(saying("x"), tokenizer) as served:
            assert (await served.chat(**fields)).status_code == 200
            assert served.engine.submitted[0].grammar is None

    run(scenario())


REFUSED = [
    ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex"),
    ({"structured_outputs": {"regex": "a"}, "response_format": named({})}, "structured_outputs"),
    ({"structured_outputs": {}}, "structured_outputs"),
    ({"structured_outputs": {"json_object": False}}, "structured_outputs"),
    ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
    ({"structured_outputs": {"regex": ""}}, "structured_outputs.regex"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
    ({"structured_outputs": {"choice": ["a", 1]}}, "structured_outputs.choice.1"),
    ({"structured_outputs": {"choice": ["a"] * (MAX_CHOICES + 1)}}, "structured_outputs.choice"),
    ({"structured_outputs": {"regexp": "a"}}, "structured_outputs.regexp"),
    ({"structured_outputs": {"json": 3}}, "structured_outputs.json"),
    ({"structured_outputs": "a"}, "structured_outputs"),
    ({"response_format": {}}, "response_format.type"),
    ({"response_format": {"type": "yaml"}}, "response_format.type"),
    ({"response_format": "json_object"}, "response_format"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
        "response_format.json_schema.name",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
        "response_format.json_schema.schema",
    ),
    ({"response_format": {"type": "text", "schema": {}}}, "response_format.schema"),
    ({"response_format": {"type": "json_schema", "schema": {}}}, "response_format.schema"),
    ({"response_format": {"type": "structural_tag"}}, "response_format.format"),
    (
        {"response_format": {"type": "structural_tag", "structures": []}},
        "response_format.structures",
    ),
    ({"guided_choice": "a"}, "guided_choice"),
    ({"guided_json": 3}, "guided_json"),
    ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern"),
    ({"guided_regex": "a", "guided_whitespace_pattern": " "}, "guided_whitespace_pattern"),
    ({"guided_regex": "a" * (MAX_SPEC_BYTES + 1)}, "guided_regex"),
    ({"guided_json": {"title": "é" * (MAX_SPEC_BYTES // 2)}}, "guided_json"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED, ids=[str(row[0])[:80] for row in REFUSED])
def test_form_that_cannot_be_meant_is_refused_by_name(tokenizer, fields, param) -> None:
    async def scenario() -> None:
        grammars = FakeGrammars()
        async with in_memory(saying("x"), tokenizer, grammars=grammars) as served:
            answer = await served.chat(**fields)
            assert answer.status_code == 400, answer.text
            assert answer.json()["error"]["param"] == param, answer.text
            assert not grammars.specs
            assert not served.engine.submitted

    run(scenario())


def test_half_a_surrogate_pair_is_refused(tokenizer) -> None:
    async def scenario() -> None:
        async with in_memory(saying("x"), tokenizer, grammars=FakeGrammars()) as served:
            answer = await served.client.post(
                "/v1/completions",
                content=rb'{"prompt": "x", "guided_choice": ["\ud83d"]}',
                headers={"content-type": "application/json"},
            )
            assert answer.status_code == 400, answer.text
            assert not served.engine.submitted

    run(scenario())


@pytest.mark.parametrize("stream", [False, True])
def test_refused_grammar_is_an_error_before_the_answer_begins(tokenizer, stream) -> None:
    async def scenario() -> None:
        grammars = FakeGrammars(RequestError("the JSON schema at #/not: no"))
        async with in_memory(saying("x"), tokenizer, grammars=grammars) as served:
            answer = await served.chat(response_format=named({"not": {}}), stream=stream)
            error = answer.json()["error"]
            assert answer.status_code == 400
            assert error["param"] == "response_format.json_schema.schema"
            assert error["message"].endswith("the JSON schema at #/not: no")
            assert not served.engine.submitted

    run(scenario())


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        (RequestError("busy", status=503, code="queue_full"), 503),
        (EngineError("the grammar compiler died"), 500),
    ],
)
def test_compiler_that_cannot_answer_is_the_servers_error(tokenizer, fault, status) -> None:
    async def scenario() -> None:
        async with in_memory(saying("x"), tokenizer, grammars=FakeGrammars(fault)) as served:
            answer = await served.chat(guided_regex="a")
            assert answer.status_code == status
            assert "retry-after" in answer.headers if status == 503 else True

    run(scenario())


def test_server_without_a_compiler_refuses(tokenizer) -> None:
    async def scenario() -> None:
        async with in_memory(saying("x"), tokenizer) as served:
            answer = await served.complete(guided_regex="a")
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == "guided_regex"

    run(scenario())


def test_former_names_are_warned_of_once(tokenizer, caplog, monkeypatch) -> None:
    monkeypatch.setattr(structured, "_warned", set())

    async def scenario() -> None:
        async with in_memory(saying("x"), tokenizer, grammars=FakeGrammars()) as served:
            for _ in range(3):
                fields = {"guided_regex": "a", "guided_decoding_backend": "outlines"}
                assert (await served.chat(**fields)).status_code == 200

    run(scenario())
    messages = [record.getMessage() for record in caplog.records if "guided_" in record.message]
    assert len(messages) == 2
    assert "deprecated" in messages[0]
    assert "guided_decoding_backend" in messages[1]


def test_choices_share_one_grammar(tokenizer) -> None:
    async def scenario() -> None:
        async with in_memory(saying("x"), tokenizer, grammars=FakeGrammars()) as served:
            await served.complete(guided_regex="a", n=3, prompt=["x", "y"])
            grammars = [message.grammar for message in served.engine.submitted]
            assert len(grammars) == 6
            assert all(grammar is grammars[0] for grammar in grammars)

    run(scenario())


@pytest.mark.parametrize("fields", [{"ignore_eos": True}, {"min_tokens": 10}])
def test_eos_that_ends_a_grammar_is_not_shown(tokenizer, fields) -> None:
    """Its sequence ends there, whatever else would keep it going."""

    async def scenario() -> None:
        engine = saying("x")
        async with in_memory(engine, tokenizer, grammars=FakeGrammars()) as served:
            answer = await served.complete(guided_regex="x", skip_special_tokens=False, **fields)
            choice = answer.json()["choices"][0]
            assert (choice["text"], choice["finish_reason"]) == ("x", "stop")

    run(scenario())
