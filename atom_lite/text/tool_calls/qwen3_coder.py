r"""Calls written as XML, of Qwen3-Coder.

    <tool_call>
    <function=get_weather>
    <parameter=city>
    Paris
    </parameter>
    </function>
    </tool_call>

A value has no quotes, so its JSON type is the one that the function's schema declares; text comes
out as it arrives, anything else when it is complete.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from atom_lite.text.tool_calls.parser import ToolCallParser
from atom_lite.text.tool_calls.reader import Marks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from atom_lite.text.tool_calls.reader import Steps

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"
_MARKS = Marks(_OPEN, _CLOSE, _FUNCTION, _FUNCTION_END, _PARAMETER, _PARAMETER_END)
_NAME = re.compile(r"[^<>\n]+")


class Qwen3CoderParser(ToolCallParser):
    """Takes any function's name: the tags leave no doubt."""

    marks = _MARKS.words

    def read(self) -> Steps[None]:
        """Content with calls; tags elsewhere say nothing."""
        mark = yield from self.reader.copy_until(_MARKS, self.content)
        while mark is not None:
            if mark == _FUNCTION:
                mark = yield from self._read_function()
            else:
                mark = yield from self.reader.copy_until(_MARKS, self.content)

    def _read_function(self) -> Steps[str | None]:
        """Read a call after its first tag; returns the tag that ends it."""
        reader = self.reader
        name = yield from self._name()
        if not name:
            return (yield from reader.copy_until(_MARKS, self.content))
        self.begin_call(name)
        separator = "{"
        mark = yield from reader.copy_until(_MARKS, self.ignore)
        while mark in (_PARAMETER, _PARAMETER_END):
            if mark == _PARAMETER and (key := (yield from self._name())):
                self.arguments(f"{separator}{_quoted(key)}: ")
                separator = ", "
                mark = yield from self._read_value(self._schema_of(name, key))
            else:
                mark = yield from reader.copy_until(_MARKS, self.ignore)
        if mark is None and reader.cut:
            self.unfinished = True
        else:
            self.arguments("{}" if separator == "{" else "}")
        return mark

    def _name(self) -> Steps[str]:
        """What stands before the end of a tag; nothing if the tag has none."""
        name = yield from self.reader.take_run(_NAME)
        return name.strip() if (yield from self.reader.take(">")) else ""

    def _read_value(self, schema: Mapping[str, Any]) -> Steps[str | None]:
        """Read a value; returns the tag that ends it."""
        types = _types(schema)
        if types == {"string"}:
            writer = _TextWriter(self.arguments)
            self.arguments('"')
            mark = yield from self.reader.copy_until(_MARKS, writer.write)
            if mark is not None or not self.reader.cut:
                self.arguments('"')
            return mark
        pieces: list[str] = []
        mark = yield from self.reader.copy_until(_MARKS, pieces.append)
        if mark is not None or not self.reader.cut:
            self.arguments(_typed("".join(pieces), types))
        return mark

    def _schema_of(self, function: str, parameter: str) -> Mapping[str, Any]:
        properties = self.functions.get(function, {}).get("properties", {})
        schema = properties.get(parameter, {}) if isinstance(properties, dict) else {}
        return schema if isinstance(schema, dict) else {}


class _TextWriter:
    """Writes text as the inside of a JSON string, without the line breaks next to its tags."""

    def __init__(self, emit: Callable[[str], None]) -> None:
        self._emit = emit
        self._began = False
        self._held = ""

    def write(self, text: str) -> None:
        """The next piece of the text, not empty."""
        if not self._began:
            self._began = True
            text = text.removeprefix("\n")
        text = self._held + text
        self._held = "\n" if text.endswith("\n") else ""
        if shown := text.removesuffix("\n"):
            self._emit(_quoted(shown)[1:-1])


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _types(schema: Mapping[str, Any]) -> set[str]:
    """The JSON types that a schema declares; text where it says nothing."""
    declared = schema.get("type")
    if isinstance(declared, str):
        return {declared}
    if isinstance(declared, list):
        return set(map(str, declared))
    choices = [schema.get("anyOf"), schema.get("oneOf")]
    types = {
        name
        for listed in choices
        if isinstance(listed, list)
        for each in listed
        if isinstance(each, dict)
        for name in _types(each)
    }
    if not types and isinstance(members := schema.get("enum"), list):
        return {"string"} if all(isinstance(member, str) for member in members) else {"any"}
    return types or ({"any"} if "$ref" in schema or "const" in schema else {"string"})


def _typed(text: str, types: set[str]) -> str:
    """A value as JSON: what it reads as, unless that is of no declared type; else as text."""
    text = text.removeprefix("\n").removesuffix("\n")
    word = text.strip()
    lowered = word.lower()
    if lowered in ("true", "false", "null"):
        word = lowered
    try:
        value = json.loads(word)
        written = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        return _quoted(text)
    return written if "any" in types or _type_of(value) & types else _quoted(text)


def _type_of(value: Any) -> set[str]:
    match value:
        case None:
            return {"null"}
        case bool():
            return {"boolean"}
        case int():
            return {"integer", "number"}
        case float():
            return {"number", "integer"} if value.is_integer() else {"number"}
        case str():
            return {"string"}
        case list():
            return {"array"}
        case _:
            return {"object"}
