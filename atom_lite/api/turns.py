"""The messages of a request as chat templates expect them: plain objects of text and calls."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from atom_lite.api.not_yet import not_yet
from atom_lite.errors import RequestError

if TYPE_CHECKING:
    from atom_lite.api.schema_chat import Message
    from atom_lite.api.schema_tools import MessageToolCall

_NEEDS_CONTENT = ("system", "developer", "user", "tool")


def turn_of(index: int, message: Message, *, knows_developer: bool) -> dict[str, Any]:
    """One message.

    Args:
        index: its place in the request.
        message: as the client sent it.
        knows_developer: whether the template knows this role.

    Raises:
        RequestError: it holds what a model of text cannot read.
    """
    where = f"messages.{index}"
    extra = message.model_extra or {}
    if message.role == "function":
        raise not_yet(f"{where}.role", f"a message of role '{message.role}'")
    for name in ("function_call", "audio"):
        if extra.get(name):
            raise not_yet(f"{where}.{name}", f"'{where}.{name}'")
    role = message.role
    if role == "developer" and not knows_developer:
        role = "system"  # the newer name of the same thing
    turn: dict[str, Any] = {"role": role, "content": _text_of(message, where)}
    if message.name is not None:
        turn["name"] = message.name
    if thought := message.reasoning or message.reasoning_content:
        turn["reasoning_content"] = thought
    if message.tool_call_id is not None:
        turn["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        if role != "assistant":
            param = f"{where}.tool_calls"
            raise RequestError(f"'{param}' belongs to role 'assistant', not '{role}'", param=param)
        turn["tool_calls"] = [
            _call(call, f"{where}.tool_calls.{number}")
            for number, call in enumerate(message.tool_calls)
        ]
    return turn


def _call(call: MessageToolCall, where: str) -> dict[str, Any]:
    """A call with its arguments as an object, which is what templates write as JSON."""
    function = {"name": call.function.name, "arguments": _arguments(call, where)}
    told: dict[str, Any] = {"type": call.type, "function": function}
    return told if call.id is None else {"id": call.id, **told}


def _arguments(call: MessageToolCall, where: str) -> dict[str, Any]:
    given = call.function.arguments
    if isinstance(given, dict):
        return given
    param = f"{where}.function.arguments"
    try:
        value = json.loads(given) if given and not given.isspace() else {}
    except (ValueError, RecursionError) as error:
        raise RequestError(f"'{param}' is not valid JSON: {error}", param=param) from None
    if not isinstance(value, dict):
        raise RequestError(f"'{param}' must be a JSON object", param=param)
    return value


def _text_of(message: Message, where: str) -> str:
    content = message.content
    if content is None:
        if message.role in _NEEDS_CONTENT:
            raise RequestError(
                f"'{where}.content': field required", param=f"{where}.content", code="missing_field"
            )
        return ""
    if isinstance(content, str):
        return content
    for number, part in enumerate(content):
        if not part.is_text:
            param = f"{where}.content.{number}"
            if part.type in ("text", "input_text", "output_text"):
                raise RequestError(f"'{param}.text': field required", param=f"{param}.text")
            raise not_yet(param, f"a content part of type {ascii(part.type)[:40]}")
    return "\n".join(part.text or "" for part in content)
