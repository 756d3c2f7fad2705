"""Tool calls from the official client to the real model and back.

SmolLM2-135M has not been made for tools, so what is forced must be forced by the grammar.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from openai import OpenAI

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.live_servers import Server

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 12},
                "unit": {"enum": ["celsius", "fahrenheit"]},
                "place": {"$ref": "#/$defs/Place"},
            },
            "required": ["city", "unit", "place"],
            "$defs": {
                "Place": {
                    "type": "object",
                    "properties": {"inside": {"type": "boolean"}},
                    "required": ["inside"],
                }
            },
        },
    },
}
NOW = {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}
ASK = {"role": "user", "content": "What is the weather in Paris, in celsius?"}
CALL = '{"name": "get_weather", "arguments": {"city": "Paris"}}'


@pytest.fixture(scope="module")
def client(live_server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=live_server.base_url + "/v1", api_key="unused") as made:
        yield made


def ask(client: OpenAI, **fields: Any) -> Any:
    settings: dict[str, Any] = {
        "model": "",
        "messages": [ASK],
        "max_tokens": 120,
        "temperature": 0,
        "tools": [WEATHER, NOW],
    }
    return client.chat.completions.create(**(settings | fields))


def streamed(client: OpenAI, **fields: Any) -> tuple[list[tuple[str, str]], str]:
    """Calls and finish reason of a stream."""
    calls: list[list[str]] = []
    reason = ""
    for chunk in ask(client, stream=True, **fields):
        (choice,) = chunk.choices
        for piece in choice.delta.tool_calls or ():
            if piece.index == len(calls):
                assert piece.id
                calls.append([piece.function.name, ""])
            calls[-1][1] += piece.function.arguments
        reason = choice.finish_reason or reason
    return [(name, arguments) for name, arguments in calls], reason


def check_weather(arguments: str) -> None:
    told = json.loads(arguments)
    assert set(told) == {"city", "unit", "place"}
    assert len(told["city"]) <= 12
    assert told["unit"] in ("celsius", "fahrenheit")
    assert isinstance(told["place"]["inside"], bool)


def test_case_57_required_calls_are_made_and_told_alike_in_both_modes(client: OpenAI) -> None:
    fields = {"tool_choice": "required", "parallel_tool_calls": False, "tools": [WEATHER]}
    (choice,) = ask(client, **fields).choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    (call,) = choice.message.tool_calls
    assert call.function.name == "get_weather"
    check_weather(call.function.arguments)
    assert streamed(client, **fields) == (
        [(call.function.name, call.function.arguments)],
        "tool_calls",
    )


def test_case_57_a_named_function_is_called_and_ends_with_stop(client: OpenAI) -> None:
    fields = {"tool_choice": {"type": "function", "function": {"name": "get_weather"}}}
    (choice,) = ask(client, **fields).choices
    assert choice.finish_reason == "stop"
    (call,) = choice.message.tool_calls
    assert call.function.name == "get_weather"
    check_weather(call.function.arguments)
    assert streamed(client, **fields) == ([("get_weather", call.function.arguments)], "stop")


def test_case_56_a_required_call_that_does_not_fit_is_no_reason(client: OpenAI) -> None:
    (choice,) = ask(client, tool_choice="required", max_tokens=1).choices
    assert choice.finish_reason == "length"
    assert not choice.message.tool_calls
    assert not choice.message.content


def test_a_call_of_the_models_own_and_its_result_go_round(client: OpenAI) -> None:
    """What a model made for tools would write is put into this one's mouth."""
    said = {"structured_outputs": {"choice": [f"<tool_call>\n{CALL}\n</tool_call>"]}}
    (plain,) = ask(client, tool_choice="none", extra_body=said).choices
    assert plain.message.content == f"<tool_call>\n{CALL}\n</tool_call>"
    assert plain.finish_reason == "stop"
    history = [
        ASK,
        {
            "role": "assistant",
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "12 degrees and rain"},
    ]
    one = {"structured_outputs": {"regex": "It has [0-9]{2} degrees\\."}}
    (answer,) = ask(client, messages=history, tool_choice="none", extra_body=one).choices
    assert answer.message.content == "It has 12 degrees."
    assert answer.finish_reason == "stop"
    # a free choice leaves it the form or calls; this model repeats what it sees
    (again,) = ask(client, messages=history, extra_body=one).choices
    (call,) = again.message.tool_calls
    assert again.message.content is None
    assert (call.function.name, json.loads(call.function.arguments)) == (
        "get_weather",
        {"city": "Paris"},
    )
    assert again.finish_reason == "tool_calls"
