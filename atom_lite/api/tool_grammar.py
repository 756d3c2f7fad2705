"""The grammar that makes a model call: `tool_choice` "required", or a function by name.

The output is then plain JSON, whatever the model's own format, so a model obeys that has never
seen tools: a list of `{"name": ..., "parameters": {...}}`, or the arguments of the named function.
`text/tool_calls/forced.py` reads both back.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from atom_lite.api.faults import shown
from atom_lite.api.structured import MAX_SPEC_BYTES, StatedForm
from atom_lite.errors import RequestError
from atom_lite.ipc.grammar_messages import GrammarSpec
from atom_lite.text.tokenizer import check_is_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from atom_lite.api.schema_tools import Tool, ToolFields

_TABLES = ("$defs", "definitions")
_PLAIN_VALUES = ("enum", "const", "default", "examples")  # hold no schemas


def forced_form(body: ToolFields) -> StatedForm | None:
    """What `tool_choice` makes of the output; None where the model is free.

    Raises:
        RequestError: the schemas are too large, or no text.
    """
    if body.calling not in ("required", "named"):
        return None
    tools = body.usable_tools
    if body.calling == "named":
        schema: dict[str, Any] = dict(tools[0].function.schema_)
    else:
        schema = _list_of_calls(tools, only_one=body.parallel_tool_calls is False)
    try:
        text = json.dumps(schema, ensure_ascii=False, allow_nan=False)
    except ValueError:
        raise RequestError("'tools' holds a number that is not finite", param="tools") from None
    check_is_text(text, param="tools")
    if len(text.encode()) > MAX_SPEC_BYTES:
        raise RequestError(
            f"'tools' has schemas of {len(text.encode())} bytes; at most {MAX_SPEC_BYTES} are "
            "taken where 'tool_choice' demands a call",
            param="tools",
        )
    return StatedForm("tools", GrammarSpec(kind="json_schema", text=text, any_whitespace=False))


def _list_of_calls(tools: Sequence[Tool], *, only_one: bool) -> dict[str, Any]:
    definitions: dict[str, Any] = {}
    calls = []
    for number, tool in enumerate(tools):
        parameters = _moved(tool.function.schema_, f"f{number}", definitions)
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"const": tool.function.name}, "parameters": parameters},
                "required": ["name", "parameters"],
                "additionalProperties": False,
            }
        )
    form: dict[str, Any] = {"type": "array", "minItems": 1}
    form["items"] = calls[0] if len(calls) == 1 else {"anyOf": calls}
    if only_one:
        form["maxItems"] = 1
    if definitions:
        form["$defs"] = definitions
    return form


def _moved(schema: Mapping[str, Any], prefix: str, definitions: dict[str, Any]) -> dict[str, Any]:
    """A schema as a part of a larger one: its definitions and what refers to them renamed."""
    tables = {name: schema[name] for name in _TABLES if isinstance(schema.get(name), dict)}
    places = {"#": f"#/$defs/{prefix}"}
    for table, entries in tables.items():
        for name in entries:
            places[f"#/{table}/{name}"] = f"#/$defs/{prefix}_{table.strip('$')}_{name}"
    for table, entries in tables.items():
        for name, value in entries.items():
            new_name = places[f"#/{table}/{name}"].removeprefix("#/$defs/")
            definitions[new_name] = _renamed(value, places)
    own: dict[str, Any] = _renamed(
        {key: value for key, value in schema.items() if key not in tables}, places
    )
    if _refers_to(schema, "#"):
        definitions[prefix] = own
        return {"$ref": places["#"]}
    return own


def _renamed(node: Any, places: Mapping[str, str]) -> Any:
    if isinstance(node, list):
        return [_renamed(item, places) for item in node]
    if not isinstance(node, dict):
        return node
    renamed = {
        key: value if key in _PLAIN_VALUES else _renamed(value, places)
        for key, value in node.items()
    }
    if isinstance(target := node.get("$ref"), str):
        if target not in places:
            raise RequestError(
                f"'tools': the reference {shown(target)} leads to no definition of its own schema",
                param="tools",
            )
        renamed["$ref"] = places[target]
    return renamed


def _refers_to(node: Any, target: str) -> bool:
    if isinstance(node, list):
        return any(_refers_to(item, target) for item in node)
    if not isinstance(node, dict):
        return False
    return node.get("$ref") == target or any(_refers_to(each, target) for each in node.values())
