"""Tools in the prompt of a model whose chat template knows none.

A template without `tools` would leave out what a client declares, its calls and their results. Here
they become plain text of ordinary turns, in the format of Hermes, which most models have seen. Runs
in the frontend.

Source: the system prompt of Hermes 2 Pro and Qwen 2.5.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_KNOWS_TOOLS = re.compile(r"\btools\b")
_FUNCTIONS = """# Tools

You may call functions to help with the user's query. Their signatures are given as JSON within \
<tools></tools> tags:
<tools>
{functions}
</tools>"""
_FORMAT = """

For each function call, return a JSON object with the function's name and arguments within \
<tool_call></tool_call> tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call>"""


def knows_tools(template: str) -> bool:
    """Whether a chat template writes a request's tools into the prompt."""
    return _KNOWS_TOOLS.search(template) is not None


def teach(
    turns: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    *,
    tell_format: bool,
) -> list[dict[str, Any]]:
    """The same conversation without anything that only a template with tools can write.

    Args:
        turns: as for a template.
        tools: that the model shall know of, added to the system message.
        tell_format: say how a call is written.
    """
    taught = [_plain(turn) for turn in turns]
    if not tools:
        return taught
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    text = _FUNCTIONS.format(functions=listed) + (_FORMAT if tell_format else "")
    if taught and taught[0]["role"] == "system":
        taught[0]["content"] = f"{taught[0]['content']}\n\n{text}"
        return taught
    return [{"role": "system", "content": text}, *taught]


def _plain(turn: Mapping[str, Any]) -> dict[str, Any]:
    plain = {key: value for key, value in turn.items() if key not in ("tool_calls", "tool_call_id")}
    if turn["role"] == "tool":
        content = f"<tool_response>\n{turn['content']}\n</tool_response>"
        return {**plain, "role": "user", "content": content}
    if calls := turn.get("tool_calls"):
        written = [_written(call["function"]) for call in calls]
        plain["content"] = "\n".join([*filter(None, [turn["content"]]), *written])
    return plain


def _written(function: Mapping[str, Any]) -> str:
    call = {"name": function["name"], "arguments": function["arguments"]}
    return f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>"
