"""What of a JSON schema is enforced, what is a note, and what is refused by name and place."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atom_lite.engine.grammar_schema import (
    ANNOTATIONS,
    KEYWORDS,
    MAX_DEPTH,
    MAX_ENUM_MEMBERS,
    beyond_xgrammar,
    prepare_schema,
)
from atom_lite.errors import RequestError

OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}}}


def prepared(schema: Any, *, close_objects: bool = False) -> Any:
    return prepare_schema(json.dumps(schema), close_objects=close_objects)


def refusal(schema: Any) -> str:
    with pytest.raises(RequestError) as caught:
        prepared(schema)
    return caught.value.message


@pytest.mark.parametrize(
    "keyword",
    [
        *("not", "if", "then", "else", "contains", "minContains", "maxContains"),
        *("dependentRequired", "dependentSchemas", "dependencies", "propertyNames"),
        *("$dynamicRef", "$recursiveRef", "$dynamicAnchor", "x-guidance", "minlength", "nullable"),
    ],
)
def test_keyword_that_would_not_be_kept_is_refused_by_name_and_place(keyword: str) -> None:
    message = refusal({"type": "object", "properties": {"a/b": {keyword: {}}}})
    assert f"#/properties/a~1b/{keyword}" in message
    assert repr(keyword) in message


@pytest.mark.parametrize("keyword", ["uniqueItems", "unevaluatedProperties", "nullable"])
def test_refused_keyword_passes_where_it_says_nothing(keyword: str) -> None:
    neutral = keyword == "unevaluatedProperties"
    assert prepared({"type": "array", keyword: neutral}) == {"type": "array"}
    assert keyword in refusal({"type": "array", keyword: not neutral})
    assert keyword in refusal({"type": "array", keyword: int(neutral)})


def test_annotations_are_left_out() -> None:
    notes = dict.fromkeys(ANNOTATIONS, "x")
    assert prepared({"type": "integer", "x-order": 3, **notes}) == {"type": "integer"}


def test_properties_may_be_called_like_keywords() -> None:
    listed = dict.fromkeys([*KEYWORDS, *ANNOTATIONS, "not", "anything"], True)
    schema = {"type": "object", "properties": listed, "additionalProperties": False}
    assert prepared(schema) == schema


def test_format_is_kept_refused_or_a_note() -> None:
    assert prepared({"type": "string", "format": "date"})["format"] == "date"
    assert "uri-template" in refusal({"type": "string", "format": "uri-template"})
    assert prepared({"type": "integer", "format": "int32"}) == {"type": "integer"}


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ([], "#"),
        ({"properties": []}, "#/properties"),
        ({"anyOf": {}}, "#/anyOf"),
        ({"items": 3}, "#/items"),
        ({"enum": 3}, "#/enum"),
        ({"required": [[]]}, "#/required"),
        ({"format": {}}, "#/format"),
        ({"$ref": []}, "#/$ref"),
        ({"allOf": [True, None]}, "#/allOf/1"),
        ({"enum": list(range(MAX_ENUM_MEMBERS + 1))}, str(MAX_ENUM_MEMBERS)),
        ({"anyOf": [{"enum": list(range(MAX_ENUM_MEMBERS // 2 + 1))}] * 2}, str(MAX_ENUM_MEMBERS)),
    ],
)
def test_what_is_no_schema_or_too_large_is_told_with_its_place(schema: Any, named: str) -> None:
    assert named in refusal(schema)


@pytest.mark.parametrize("text", ["", "{", "NaN", '{"minimum": 1e999}', "[" * 100_000])
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(RequestError):
        prepare_schema(text, close_objects=False)


def test_deep_schema_is_refused_with_the_limit() -> None:
    def nested(depth: int) -> Any:
        schema: Any = {"type": "string"}
        for _ in range(depth):
            schema = {"type": "array", "items": schema}
        return schema

    prepared(nested(MAX_DEPTH))
    assert str(MAX_DEPTH) in refusal(nested(MAX_DEPTH + 1))


def test_objects_that_list_properties_have_no_others() -> None:
    assert prepared(OBJECT)["additionalProperties"] is False
    nested = prepared({"type": "array", "items": {"anyOf": [OBJECT, {"type": "object"}]}})
    assert nested["items"]["anyOf"][0]["additionalProperties"] is False
    assert "additionalProperties" not in nested["items"]["anyOf"][1]


@pytest.mark.parametrize(
    "more",
    [
        {"additionalProperties": True},
        {"patternProperties": {"^x": True}},
        {"required": ["z"]},
        {"minProperties": 2},
        {"allOf": [{"properties": {"b": True}}]},
        {"anyOf": [{"required": ["a"]}]},
    ],
)
def test_objects_that_need_others_stay_open(more: dict[str, Any]) -> None:
    assert prepared({**OBJECT, **more}).get("additionalProperties", True) is True


def test_intersected_objects_are_closed_if_the_client_says_so() -> None:
    both = {"allOf": [OBJECT]}
    assert prepared(both) == both
    closed = prepared(both, close_objects=True)
    assert closed["allOf"][0]["additionalProperties"] is False


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"type": "string", "pattern": "a"}, "#/pattern"),
        ({"type": "object", "properties": {"a": {"minimum": 3}}}, "#/properties/a"),
        ({"type": "number", "minimum": 0}, "#/minimum"),
        ({"type": "integer", "multipleOf": 2}, "#/multipleOf"),
        ({"type": "integer", "minimum": 2.5}, "#/minimum"),
        ({"type": "integer", "anyOf": [{"minimum": 3}]}, "#/anyOf"),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"type": "array", "prefixItems": []}}}, None),
        ({"$ref": "http://a.b/c"}, "#"),
        ({"enum": [{"a": 1}]}, "#"),
        ({"type": "string", "enum": ["a", 1]}, "#"),
        ({"type": "object", "properties": {"é": True}}, "#/properties/é"),
        ({"type": "array", "items": False}, "#/items"),
    ],
)
def test_what_xgrammar_does_not_do_exactly_is_found(schema: Any, place: str | None) -> None:
    found = beyond_xgrammar(schema)
    assert found == place if place else found is not None


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {},
        OBJECT,
        {"type": "integer", "minimum": 0, "exclusiveMaximum": 10},
        {"anyOf": [{"type": "null"}, {"type": "string", "maxLength": 3}]},
        {"enum": ["a", 1, None, True]},
        {"type": "string", "const": "a"},
        {"$defs": {"x": OBJECT}, "type": "array", "items": {"$ref": "#/$defs/x"}},
        {"type": "object", "additionalProperties": {"type": "array", "items": {}, "minItems": 1}},
    ],
)
def test_plain_schemas_are_xgrammars(schema: Any) -> None:
    assert beyond_xgrammar(schema) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
WORDS = st.sampled_from(sorted(KEYWORDS | ANNOTATIONS | {"not", "if", "uniqueItems", "x-a"}))
NONSENSE = st.recursive(
    JSON,
    lambda inner: (
        st.dictionaries(WORDS, inner, max_size=4)
        | st.dictionaries(st.sampled_from(["properties", "$defs", "anyOf"]), st.lists(inner))
        | st.dictionaries(st.just("properties"), st.dictionaries(st.text(max_size=3), inner))
    ),
    max_leaves=12,
)


@given(NONSENSE, st.booleans())
def test_any_json_is_prepared_or_refused(schema: Any, close_objects: bool) -> None:
    try:
        made = prepared(schema, close_objects=close_objects)
    except RequestError as error:
        assert error.status == 400
        return
    assert set(_keywords(made)) <= KEYWORDS
    beyond_xgrammar(made)


def _keywords(schema: Any) -> list[str]:
    """Every keyword that stands where a schema stands."""
    if not isinstance(schema, dict):
        return []
    found = list(schema)
    for keyword in ("properties", "patternProperties", "$defs", "definitions"):
        for inner in schema.get(keyword, {}).values():
            found += _keywords(inner)
    for keyword in ("anyOf", "oneOf", "allOf", "prefixItems"):
        for inner in schema.get(keyword, []):
            found += _keywords(inner)
    items = schema.get("items")
    for inner in items if isinstance(items, list) else [items]:
        found += _keywords(inner)
    return found + _keywords(schema.get("additionalProperties"))
