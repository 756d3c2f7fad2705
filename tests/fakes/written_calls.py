"""Messages with tool calls, written down as models of each family do."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from atom_lite.text.tool_calls.deepseek_v3 import DeepSeekV3Parser
from atom_lite.text.tool_calls.forced import NamedCallParser, RequiredCallsParser
from atom_lite.text.tool_calls.hermes import HermesParser
from atom_lite.text.tool_calls.llama3_json import Llama3JsonParser
from atom_lite.text.tool_calls.mistral import MistralParser
from atom_lite.text.tool_calls.parts import Part, joined
from atom_lite.text.tool_calls.pythonic import PythonicParser
from atom_lite.text.tool_calls.qwen3_coder import Qwen3CoderParser

if TYPE_CHECKING:
    from collections.abc import Callable

    from atom_lite.text.tool_calls.parser import ToolCallParser

FUNCTIONS: dict[str, dict[str, Any]] = {
    "get_weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "where": {"type": "object"},
            "tags": {"type": "array"},
            "exact": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
            "share": {"type": "number"},
        },
    },
    "now": {"type": "object", "properties": {}},
}
BEGIN, SEP, END = DeepSeekV3Parser.marks[2], DeepSeekV3Parser.marks[4], DeepSeekV3Parser.marks[3]
CALLS_BEGIN, CALLS_END = DeepSeekV3Parser.marks[:2]


class Call(NamedTuple):
    name: str
    arguments: dict[str, Any]


class Format(NamedTuple):
    """How one family writes calls.

    Attributes:
        make: a new parser.
        write: content and calls as one text.
        leads: content may come before the calls.
    """

    make: Callable[[], ToolCallParser]
    write: Callable[[str, list[Call]], str]
    leads: bool = True


def _object(call: Call, key: str = "arguments") -> str:
    return json.dumps({"name": call.name, key: call.arguments}, ensure_ascii=False)


def _hermes(content: str, calls: list[Call]) -> str:
    tags = [f"<tool_call>\n{_object(call)}\n</tool_call>" for call in calls]
    return "\n".join([content, *tags])


def _llama(content: str, calls: list[Call]) -> str:
    return "; ".join(_object(call, "parameters") for call in calls) + content


def _mistral(content: str, calls: list[Call]) -> str:
    return f"{content}[TOOL_CALLS] [{', '.join(map(_object, calls))}]"


def _mistral11(content: str, calls: list[Call]) -> str:
    marked = [f"[TOOL_CALLS]{call.name}[ARGS]{json.dumps(call.arguments)}" for call in calls]
    return "".join([content, *marked])


def _pythonic(content: str, calls: list[Call]) -> str:
    written = [
        f"{call.name}({', '.join(f'{key}={value!r}' for key, value in call.arguments.items())})"
        for call in calls
    ]
    return f"[{', '.join(written)}]{content}"


def _qwen(content: str, calls: list[Call]) -> str:
    written = [content]
    for call in calls:
        written.append(f"\n<tool_call>\n<function={call.name}>\n")
        for key, value in call.arguments.items():
            spelled = value if isinstance(value, str) else json.dumps(value)
            written.append(f"<parameter={key}>\n{spelled}\n</parameter>\n")
        written.append("</function>\n</tool_call>")
    return "".join(written)


def _deepseek(content: str, calls: list[Call]) -> str:
    written = [
        f"{BEGIN}function{SEP}{call.name}\n```json\n{json.dumps(call.arguments)}\n```{END}"
        for call in calls
    ]
    return f"{content}{CALLS_BEGIN}{''.join(written)}{CALLS_END}"


def _deepseek31(content: str, calls: list[Call]) -> str:
    written = [f"{BEGIN}{call.name}{SEP}{json.dumps(call.arguments)}{END}" for call in calls]
    return f"{content}{CALLS_BEGIN}{''.join(written)}{CALLS_END}"


def _required(_content: str, calls: list[Call]) -> str:
    return f"[{', '.join(_object(call, 'parameters') for call in calls)}]"


FORMATS = {
    "hermes": Format(lambda: HermesParser(FUNCTIONS), _hermes),
    "llama3_json": Format(lambda: Llama3JsonParser(FUNCTIONS), _llama, leads=False),
    "mistral": Format(lambda: MistralParser(FUNCTIONS), _mistral),
    "mistral11": Format(lambda: MistralParser(FUNCTIONS), _mistral11),
    "pythonic": Format(lambda: PythonicParser(FUNCTIONS), _pythonic, leads=False),
    "qwen3_coder": Format(lambda: Qwen3CoderParser(FUNCTIONS), _qwen),
    "deepseek_v3": Format(lambda: DeepSeekV3Parser(FUNCTIONS), _deepseek),
    "deepseek_v31": Format(lambda: DeepSeekV3Parser(FUNCTIONS), _deepseek31),
    "required": Format(lambda: RequiredCallsParser(FUNCTIONS), _required, leads=False),
}


def named() -> ToolCallParser:
    return NamedCallParser(FUNCTIONS, "get_weather")


def parse(parser: ToolCallParser, pieces: list[str], *, cut: bool = False) -> list[Part]:
    """The whole message that the pieces make."""
    parts = [part for piece in pieces for part in parser.feed(piece)]
    return joined([*parts, *parser.finish(cut=cut)])


def content_of(parts: list[Part]) -> str:
    return "".join(part.text for part in parts if part.kind == "content")


def calls_of(parts: list[Part]) -> list[tuple[str, str]]:
    """Name and arguments of each call."""
    calls: list[tuple[str, str]] = []
    for part in parts:
        if part.kind == "call":
            assert part.call == len(calls)
            calls.append((part.text, ""))
        elif part.kind == "arguments":
            assert part.call == len(calls) - 1
            calls[-1] = (calls[-1][0], calls[-1][1] + part.text)
    return calls
