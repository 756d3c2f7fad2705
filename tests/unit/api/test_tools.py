"""Tool calls and thoughts over HTTP, with an engine that says what it is told to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from atom_lite.config import Config, ModelConfig
from atom_lite.config_chat import ChatConfig
from tests.fakes.fake_engine import FakeEngine, engine_ready
from tests.fakes.written_calls import CALLS_BEGIN
from tests.unit.api.serving import events_of, ids_of, in_memory, run

if TYPE_CHECKING:
    import httpx

    from atom_lite.text.tokenizer import Tokenizer

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}
NOW = {"type": "function", "function": {"name": "now"}}
TOOLS = [WEATHER, NOW]
PARIS = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
TIME = '<tool_call>{"name": "now"}</tool_call>'
TEMPLATE = (
    "{% for m in messages %}<turn>{{ m.role }}: {{ m.content }}"
    "{% for c in m.tool_calls or [] %}<call {{ c.function.name }} "
    "{{ c.function.arguments | tojson }}>{% endfor %}{{ '\n' }}{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% if add_generation_prompt %}<turn>assistant: {% endif %}"
)


def saying(text: str, **settings: Any) -> FakeEngine:
    """An engine with room for a conversation about tools."""
    ready = engine_ready(max_model_len=2048, num_blocks=256)
    return FakeEngine(ready, plan=lambda _message: ids_of(text), **settings)


def config(template: str | None = TEMPLATE, **chat: Any) -> Config:
    return Config(model=ModelConfig(chat_template=template), chat=ChatConfig(**chat))


def message_of_stream(events: list[Any]) -> dict[str, Any]:
    """What a client makes of a stream's deltas."""
    message: dict[str, Any] = {"content": "", "reasoning": "", "tool_calls": []}
    for event in events:
        for choice in event["choices"]:
            delta = choice["delta"]
            message["content"] += delta.get("content") or ""
            message["reasoning"] += delta.get("reasoning") or ""
            assert delta.get("reasoning") == delta.get("reasoning_content")
            for piece in delta.get("tool_calls", ()):
                if piece["index"] == len(message["tool_calls"]):
                    assert piece["type"] == "function"
                    call = {"id": piece["id"], "name": piece["function"]["name"], "arguments": ""}
                    message["tool_calls"].append(call)
                else:
                    assert set(piece) == {"index", "function"}
                message["tool_calls"][-1]["arguments"] += piece["function"]["arguments"]
    return message


def both(
    tokenizer: Tokenizer, text: str, settings: Config, *, tokens_per_step: int = 1, **fields: Any
) -> tuple[dict[str, Any], str]:
    """The message and finish reason of an answer, whole and streamed the same."""
    got: list[Any] = []

    async def scenario():
        engine = saying(text, tokens_per_step=tokens_per_step)
        async with in_memory(engine, tokenizer, settings) as served:
            whole = (await served.chat(**fields)).json()["choices"][0]
            events = events_of((await served.chat(stream=True, **fields)).text)
        message = whole["message"]
        assert message["role"] == "assistant"
        assert message.get("reasoning") == message.get("reasoning_content")
        calls = [{"id": call["id"], **call["function"]} for call in message.get("tool_calls", ())]
        told = {
            "content": message["content"] or "",
            "reasoning": message.get("reasoning") or "",
            "tool_calls": calls,
        }
        streamed = message_of_stream(events)
        ids = [call.pop("id") for each in (told, streamed) for call in each["tool_calls"]]
        assert len(set(ids)) == len(ids)
        assert streamed == told
        assert events[-1]["choices"][0]["finish_reason"] == whole["finish_reason"]
        if calls and not told["content"]:
            assert message["content"] is None
        got.extend([told, whole["finish_reason"]])

    run(scenario())
    return got[0], got[1]


def test_case_59_text_and_two_calls_in_one_piece(tokenizer):
    for tokens_per_step in (1, 7, 500):
        message, reason = both(
            tokenizer,
            f"Let me see.\n{PARIS}\n{TIME}",
            config(),
            tools=TOOLS,
            tokens_per_step=tokens_per_step,
        )
        assert message["content"] == "Let me see."
        assert message["tool_calls"] == [
            {"name": "weather", "arguments": '{"city": "Paris"}'},
            {"name": "now", "arguments": "{}"},
        ]
        assert reason == "tool_calls"


def test_without_tools_or_with_choice_none_markup_is_text(tokenizer):
    for fields in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        message, reason = both(tokenizer, PARIS, config(), **fields)
        assert message == {"content": PARIS, "reasoning": "", "tool_calls": []}
        assert reason == "stop"


def test_parallel_calls_can_be_refused(tokenizer):
    message, reason = both(
        tokenizer, PARIS + TIME, config(), tools=TOOLS, parallel_tool_calls=False
    )
    assert [call["name"] for call in message["tool_calls"]] == ["weather"]
    assert reason == "tool_calls"


def test_case_62_an_unfinished_call_leaks_nothing_and_is_no_reason(tokenizer):
    for limit, calls in (
        (len('<tool_call>\n{"na'), []),
        (len('<tool_call>\n{"name": "weather", "arg'), [("weather", "")]),
        (len(PARIS) - len('ris"}}\n</tool_call>'), [("weather", '{"city": "Pa')]),
    ):
        message, reason = both(tokenizer, PARIS, config(), tools=TOOLS, max_tokens=limit)
        assert message["content"] == ""
        assert [(c["name"], c["arguments"]) for c in message["tool_calls"]] == calls
        assert reason == "length"


def test_case_11_a_stop_string_inside_a_call_leaves_it_unfinished(tokenizer):
    message, reason = both(tokenizer, f"Hm. {PARIS}", config(), tools=TOOLS, stop=["aris"])
    assert message["content"] == "Hm."
    assert message["tool_calls"] == [{"name": "weather", "arguments": '{"city": "P'}]
    assert reason == "stop"


def test_case_65_tools_and_streamed_log_probabilities_go_together(tokenizer):
    text = f"Hm {PARIS} ok"

    async def scenario():
        async with in_memory(saying(text), tokenizer, config()) as served:
            fields = {"tools": TOOLS, "logprobs": True}
            whole = (await served.chat(**fields)).json()["choices"][0]
            events = events_of((await served.chat(stream=True, **fields)).text)
        listed = [token["token"] for token in whole["logprobs"]["content"]]
        assert "".join(listed[:-1]) == text
        streamed = [
            token["token"]
            for event in events
            for token in (event["choices"][0]["logprobs"] or {"content": []})["content"]
        ]
        assert streamed == listed

    run(scenario())


@pytest.mark.parametrize(
    ("parser", "sign", "text"),
    [
        ("llama3_json", "<|python_tag|>", '{"name": "weather", "parameters": {"city": "Paris"}}'),
        ("pythonic", "<|python_start|>", '[weather(city="Paris")]'),
        ("mistral", "[TOOL_CALLS]", '[TOOL_CALLS]weather[ARGS]{"city": "Paris"}'),
        (
            "qwen3_coder",
            "<function=",
            "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n</function>"
            "\n</tool_call>",
        ),
        ("hermes", "<tool_call>", PARIS),
    ],
)
def test_a_format_is_named_by_a_flag_or_recognised_from_the_template(tokenizer, parser, sign, text):
    for settings in (
        config(tool_call_parser=parser),
        config(TEMPLATE + "{# " + sign + " #}"),
    ):
        message, reason = both(tokenizer, text, settings, tools=TOOLS)
        assert message["content"] == ""
        assert message["tool_calls"] == [{"name": "weather", "arguments": '{"city": "Paris"}'}]
        assert reason == "tool_calls"


def test_ids_of_calls_are_as_long_as_mistrals_templates_demand(tokenizer):
    async def scenario():
        text = '[TOOL_CALLS][{"name": "now", "arguments": {}}]'
        settings = config(tool_call_parser="mistral")
        async with in_memory(saying(text), tokenizer, settings) as served:
            answer = (await served.chat(tools=TOOLS)).json()
        (call,) = answer["choices"][0]["message"]["tool_calls"]
        assert len(call["id"]) == 9
        assert call["id"].isalnum()

    run(scenario())


def prompt_of(tokenizer: Tokenizer, settings: Config, **fields: Any) -> str:
    prompts: list[str] = []

    async def scenario():
        async with in_memory(saying("x"), tokenizer, settings) as served:
            answer = await served.chat(**fields)
            assert answer.status_code == 200, answer.text
            ids = served.engine.submitted[0].prompt_token_ids
            counted = await served.client.post("/tokenize", json=fields)
            assert counted.json()["tokens"] == ids
            prompts.append(tokenizer.decode(ids, skip_special_tokens=False))

    run(scenario())
    return prompts[0]


MESSAGES = [
    {"role": "user", "content": "Weather?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "c1",
                "type": "function",
                "function": {"name": "weather", "arguments": '{"city":"Paris"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "12 C"}]},
]


def test_tools_calls_and_results_reach_a_template_that_knows_them(tokenizer):
    fields = {"messages": MESSAGES, "tools": [NOW], "max_tokens": 1}
    assert prompt_of(tokenizer, config(), **fields) == (
        '<turn>user: Weather?\n<turn>assistant: <call weather {"city": "Paris"}>\n'
        '<turn>tool: 12 C\n[{"type": "function", "function": {"name": "now"}}]<turn>assistant: '
    )


def test_tools_of_choice_none_and_those_not_allowed_stay_out_of_the_prompt(tokenizer):
    fields = {"messages": MESSAGES, "tools": TOOLS, "max_tokens": 1}
    assert '"type"' not in prompt_of(tokenizer, config(), tool_choice="none", **fields)
    allowed = {
        "type": "allowed_tools",
        "allowed_tools": {
            "mode": "auto",
            "tools": [{"type": "function", "function": {"name": "now"}}],
        },
    }
    fields = {"messages": MESSAGES, "tools": TOOLS, "max_tokens": 1}
    prompt = prompt_of(tokenizer, config(), tool_choice=allowed, **fields)
    assert '"now"' in prompt
    assert '"weather"' not in prompt


def test_a_template_without_tools_is_told_of_them_in_plain_text(tokenizer):
    fields = {"messages": MESSAGES, "tools": [NOW], "max_tokens": 1}
    prompt = prompt_of(tokenizer, config(None), **fields)
    assert prompt.startswith("<turn>system: # Tools")
    assert '<tools>\n{"type": "function", "function": {"name": "now"}}\n</tools>' in prompt
    assert (
        '<turn>assistant: <tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n'
        in (prompt)
    )
    assert "<turn>user: <tool_response>\n12 C\n</tool_response>\n<turn>assistant: " in prompt


BAD = [
    ({"tools": []}, "tools"),
    ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools.0"),
    ({"tools": [{"type": "function"}]}, "tools.0.function"),
    ({"tools": [NOW, NOW]}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": "any"}, "tool_choice"),
    (
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "f"}}},
        "tool_choice",
    ),
    (
        {"tools": TOOLS, "tool_choice": "required", "response_format": {"type": "json_object"}},
        "response_format",
    ),
]


@pytest.mark.parametrize(("fields", "param"), BAD)
def test_tools_that_make_no_sense_are_a_400_that_names_the_field(tokenizer, fields, param):
    async def scenario():
        async with in_memory(saying("x"), tokenizer, config()) as served:
            answer: httpx.Response = await served.chat(**fields)
            assert answer.status_code == 400, answer.text
            assert answer.json()["error"]["param"].startswith(param), answer.text
            assert not served.engine.submitted

    run(scenario())


def test_auto_can_be_switched_off(tokenizer):
    async def scenario():
        settings = config(enable_auto_tool_choice=False)
        async with in_memory(saying("x"), tokenizer, settings) as served:
            answer = await served.chat(tools=TOOLS)
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == "tool_choice"
            assert "--enable-auto-tool-choice" in answer.json()["error"]["message"]
            assert (await served.chat(tools=TOOLS, tool_choice="none")).status_code == 200

    run(scenario())


def test_tools_belong_to_chat(tokenizer):
    async def scenario():
        async with in_memory(saying("x"), tokenizer) as served:
            answer = await served.complete(tools=TOOLS)
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == "tools"

    run(scenario())


def test_marks_that_are_control_tokens_are_seen_all_the_same(tokenizer):
    """Token 1 of this vocabulary is the control token <turn>."""

    async def scenario():
        settings = config("{{ messages[0].content }}<turn>", reasoning_parser="granite")
        async with in_memory(saying("x"), tokenizer, settings) as served:
            form = served.app.state.frontend.formats
            assert form.reasoning is not None
        assert tokenizer.special_ids_of(["<turn>", "<none>", "DEF"]) == {1}

    run(scenario())


# ---------------------------------------------------------------- thoughts

THOUGHT = "<think>\n2 + 2 = 4\n</think>\n\nFour."


def test_thoughts_and_answer_come_apart_under_both_names(tokenizer):
    for settings in (
        config(reasoning_parser="qwen3"),
        config(reasoning_parser="deepseek_r1"),
        config(TEMPLATE + "{# </think> #}"),
    ):
        for tokens_per_step in (1, 9, 500):
            message, reason = both(tokenizer, THOUGHT, settings, tokens_per_step=tokens_per_step)
            assert message == {"content": "Four.", "reasoning": "2 + 2 = 4", "tool_calls": []}
            assert reason == "stop"
    message, _ = both(tokenizer, THOUGHT, config(reasoning_parser="none"))
    assert message["content"] == THOUGHT


def test_a_prompt_that_opens_thoughts_needs_no_mark_in_the_output(tokenizer):
    opening = config(TEMPLATE + "{% if true %}<think>\n{% endif %}", reasoning_parser="qwen3")
    message, _ = both(tokenizer, "Hm.\n</think>\n\nYes.", opening)
    assert (message["reasoning"], message["content"]) == ("Hm.", "Yes.")
    closed = config(TEMPLATE + "<think>\n\n</think>\n\n", reasoning_parser="deepseek_r1")
    message, _ = both(tokenizer, "Yes.", closed)
    assert (message["reasoning"], message["content"]) == ("", "Yes.")


def test_case_9_stop_strings_apply_to_the_answer_and_not_to_thoughts(tokenizer):
    message, reason = both(tokenizer, THOUGHT + " 4!", config(reasoning_parser="qwen3"), stop=["4"])
    assert message["reasoning"] == "2 + 2 = 4"
    assert message["content"] == "Four. "
    assert reason == "stop"


def test_thoughts_before_calls(tokenizer):
    message, reason = both(
        tokenizer, f"{THOUGHT}\n{PARIS}", config(reasoning_parser="qwen3"), tools=TOOLS
    )
    assert message["reasoning"] == "2 + 2 = 4"
    assert message["content"] == "Four."
    assert message["tool_calls"] == [{"name": "weather", "arguments": '{"city": "Paris"}'}]
    assert reason == "tool_calls"


def test_thoughts_can_be_left_out_and_are_counted(tokenizer):
    async def scenario():
        settings = config(reasoning_parser="qwen3")
        async with in_memory(saying(THOUGHT), tokenizer, settings) as served:
            answer = (await served.chat(include_reasoning=False)).json()
        message = answer["choices"][0]["message"]
        assert message["content"] == "Four."
        assert "reasoning" not in message
        used = answer["usage"]["completion_tokens_details"]["reasoning_tokens"]
        assert used == len(THOUGHT.partition("</think>")[0] + "</think>") - len("<think>")

    run(scenario())


def test_no_thoughts_are_asked_of_a_model_with_reasoning_effort_none(tokenizer):
    settings = config(reasoning_parser="deepseek_r1")
    message, _ = both(tokenizer, "Yes.", settings, reasoning_effort="none")
    assert (message["reasoning"], message["content"]) == ("", "Yes.")
    message, _ = both(tokenizer, "Yes.", settings)
    assert (message["reasoning"], message["content"]) == ("Yes.", "")


def test_deepseeks_template_is_recognised(tokenizer):
    async def scenario():
        settings = config(TEMPLATE + "{# " + CALLS_BEGIN + " #}")
        async with in_memory(saying("x"), tokenizer, settings) as served:
            formats = served.app.state.frontend.formats
        assert formats.tool_parser.__name__ == "DeepSeekV3Parser"

    run(scenario())


def test_a_template_of_the_request_needs_trust(tokenizer):
    fields = {"messages": [{"role": "user", "content": "hi"}], "chat_template": "<{{ tools }}>"}

    async def scenario():
        async with in_memory(saying("x"), tokenizer) as served:
            refused = (await served.chat(**fields)).json()["error"]
            assert refused["param"] == "chat_template"
            assert "--trust-request-chat-template" in refused["message"]
        settings = config(trust_request_chat_template=True)
        async with in_memory(saying("x"), tokenizer, settings) as served:
            bad = (await served.chat(**fields | {"chat_template": "{% if"})).json()["error"]
            assert bad["param"] == "chat_template"

    run(scenario())
    settings = config(trust_request_chat_template=True)
    assert prompt_of(tokenizer, settings, max_tokens=1, tools=[NOW], **fields).startswith("<[{")


def test_variables_of_the_template_come_from_request_effort_and_server(tokenizer):
    settings = config(
        "{{ a }} {{ b }} {{ reasoning_effort }} {{ enable_thinking }}.",
        default_chat_template_kwargs='{"a": 1, "b": 2, "enable_thinking": true}',
    )

    def told(**fields: Any) -> str:
        return prompt_of(tokenizer, settings, messages=MESSAGES[:1], max_tokens=1, **fields)

    assert told() == "1 2  True."
    assert told(chat_template_kwargs={"b": 3}, reasoning_effort="low") == "1 3 low True."
    assert told(reasoning_effort="none") == "1 2 none False."
    asked = {"enable_thinking": True}
    assert told(reasoning_effort="none", chat_template_kwargs=asked) == "1 2 none True."
