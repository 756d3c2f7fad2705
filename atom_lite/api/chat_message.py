"""The parts of an assistant's message as JSON, whole and in deltas.

Thoughts go under both of the names that clients know: `reasoning` (vLLM) and `reasoning_content`
(all others).
"""

from __future__ import annotations

import secrets
import string
from typing import TYPE_CHECKING, Any

from atom_lite.api import sse

if TYPE_CHECKING:
    from collections.abc import Iterable

    from atom_lite.text.tool_calls.parts import Part

_LETTERS = string.ascii_letters + string.digits
_SHORT_ID_LETTERS = 9


def delta_of(part: Part, *, short_ids: bool) -> bytes:
    """The `delta` of a streamed choice."""
    match part.kind:
        case "content":
            return b'{"content":%b}' % sse.json_text(part.text)
        case "reasoning":
            text = sse.json_text(part.text)
            return b'{"reasoning":%b,"reasoning_content":%b}' % (text, text)
        case "call":
            call = _call(part.text, short_ids=short_ids)
        case _:
            call = {"function": {"arguments": part.text}}
    return sse.json_bytes({"tool_calls": [{"index": part.call, **call}]})


def message_of(parts: Iterable[Part], *, before: str = "", short_ids: bool) -> dict[str, Any]:
    """The `message` of a whole choice.

    Args:
        parts: all of it.
        before: what the content begins with, where the client wants that back.
        short_ids: the form of the calls' ids.
    """
    texts = {"content": before, "reasoning": ""}
    calls: list[dict[str, Any]] = []
    for part in parts:
        if part.kind == "call":
            calls.append(_call(part.text, short_ids=short_ids))
        elif part.kind == "arguments":
            calls[part.call]["function"]["arguments"] += part.text
        else:
            texts[part.kind] += part.text
    nothing_else = not calls and not texts["reasoning"]
    message: dict[str, Any] = {
        "role": "assistant",
        "content": texts["content"] or ("" if nothing_else else None),
        "refusal": None,
    }
    if texts["reasoning"]:
        message |= {"reasoning": texts["reasoning"], "reasoning_content": texts["reasoning"]}
    if calls:
        message["tool_calls"] = calls
    return message


def _call(name: str, *, short_ids: bool) -> dict[str, Any]:
    if short_ids:
        call_id = "".join(secrets.choice(_LETTERS) for _ in range(_SHORT_ID_LETTERS))
    else:
        call_id = f"call_{secrets.token_hex(12)}"
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": ""}}
