"""The schema that `tool_choice` holds an output to."""

from __future__ import annotations

import json
from typing import Any

import pytest

from atom_lite.api.schema_chat import ChatCompletionRequest
from atom_lite.api.tool_grammar import forced_form
from atom_lite.errors import RequestError

NODE = {
    "type": "object",
    "properties": {"next": {"$ref": "#"}, "kind": {"$ref": "#/$defs/Kind"}},
    "$defs": {"Kind": {"enum": ["a", "b"]}},
}


def schema_of(*parameters: Any, **fields: Any) -> Any:
    tools = [
        {"type": "function", "function": {"name": f"f{number}", "parameters": each}}
        for number, each in enumerate(parameters)
    ]
    body = {"messages": [{"role": "user", "content": "x"}], "tools": tools, **fields}
    form = forced_form(ChatCompletionRequest.model_validate(body))
    return None if form is None else json.loads(form.spec.text)


def test_a_named_function_is_its_own_schema():
    named = {"type": "function", "function": {"name": "f1"}}
    assert schema_of(NODE, {"type": "object"}, tool_choice=named) == {"type": "object"}
    assert schema_of(None, None, tool_choice=named) == {"type": "object"}


def test_a_free_choice_is_no_form():
    assert schema_of(NODE) is None
    assert schema_of(NODE, tool_choice="none") is None


def test_required_is_a_list_of_one_of_the_functions():
    one = schema_of({"type": "object"}, tool_choice="required", parallel_tool_calls=False)
    call = {
        "type": "object",
        "properties": {"name": {"const": "f0"}, "parameters": {"type": "object"}},
        "required": ["name", "parameters"],
        "additionalProperties": False,
    }
    assert one == {"type": "array", "minItems": 1, "maxItems": 1, "items": call}
    two = schema_of({}, {}, tool_choice="required")
    names = [each["properties"]["name"]["const"] for each in two["items"]["anyOf"]]
    assert names == ["f0", "f1"]
    assert "maxItems" not in two


def test_definitions_of_two_functions_do_not_meet():
    schema = schema_of(NODE, NODE, tool_choice="required")
    for number, call in enumerate(schema["items"]["anyOf"]):
        moved = schema["$defs"][f"f{number}"]
        assert call["properties"]["parameters"] == {"$ref": f"#/$defs/f{number}"}
        assert moved["properties"] == {
            "next": {"$ref": f"#/$defs/f{number}"},
            "kind": {"$ref": f"#/$defs/f{number}_defs_Kind"},
        }
        assert schema["$defs"][f"f{number}_defs_Kind"] == {"enum": ["a", "b"]}


def test_a_reference_that_leads_nowhere_is_refused():
    with pytest.raises(RequestError, match="leads to no definition"):
        schema_of({"properties": {"a": {"$ref": "#/$defs/None"}}}, tool_choice="required")
