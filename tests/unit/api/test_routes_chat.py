from __future__ import annotations

import asyncio

import pytest

from atom_lite.config import Config, SchedulerConfig
from tests.fakes.fake_engine import FakeEngine, engine_ready
from tests.unit.api.serving import (
    DEF,
    EOS,
    GH,
    MODEL,
    events_of,
    ids_of,
    in_memory,
    joined,
    model_config,
    run,
    saying,
)


def test_whole_answer_has_every_field_that_clients_read(tokenizer):
    async def scenario():
        async with in_memory(saying("hello"), tokenizer) as served:
            served.engine.num_cached_tokens = 16
            answer = await served.chat()
            assert answer.status_code == 200
            body = answer.json()
            assert body.pop("id").startswith("chatcmpl-")
            assert body.pop("created") > 1_700_000_000
            assert body.pop("system_fingerprint").startswith("atom_lite-")
            prompt = len("<turn>user: x\n<turn>assistant: ") - 2 * len("turn>")
            assert body == {
                "object": "chat.completion",
                "model": MODEL,
                "choices": [
                    {
                        "index": 0,
                        "message": {"role": "assistant", "content": "hello", "refusal": None},
                        "logprobs": None,
                        "finish_reason": "stop",
                        "stop_reason": None,
                    }
                ],
                "usage": {
                    "prompt_tokens": prompt,
                    "completion_tokens": 6,
                    "total_tokens": prompt + 6,
                    "prompt_tokens_details": {"cached_tokens": 16},
                },
                "service_tier": None,
            }

    run(scenario())


def test_stream_is_role_then_text_then_finish_then_usage(tokenizer):
    async def scenario():
        async with in_memory(saying("ab"), tokenizer) as served:
            answer = await served.chat(
                stream=True, stream_options={"include_usage": True}, request_id="r1"
            )
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert answer.headers["cache-control"] == "no-cache"
        assert answer.headers["x-request-id"] == "r1"
        created = events_of(answer.text)[0]["created"]
        start = (
            f'data: {{"id":"chatcmpl-r1","object":"chat.completion.chunk","created":{created},'
            f'"model":"{MODEL}","choices":['
        )
        none = '"logprobs":null,"finish_reason":null}],"usage":null}\n\n'
        assert answer.text == (
            start + '{"index":0,"delta":{"role":"assistant","content":""},' + none
            + start + '{"index":0,"delta":{"content":"a"},' + none
            + start + '{"index":0,"delta":{"content":"b"},' + none
            + start + '{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop",'
            '"stop_reason":null}],"system_fingerprint":"atom_lite-0.1.0","usage":null}\n\n'
            + start + '],"usage":{"prompt_tokens":21,"completion_tokens":3,"total_tokens":24,'
            '"prompt_tokens_details":{"cached_tokens":0}}}\n\n'
            "data: [DONE]\n\n"
        )  # fmt: skip

    run(scenario())


@pytest.mark.parametrize(
    ("options", "with_usage"),
    [
        (None, 0),
        ({}, 0),
        ({"include_usage": False}, 0),
        ({"continuous_usage_stats": True}, 0),
        ({"include_usage": True}, 1),
        ({"include_usage": True, "continuous_usage_stats": True}, 5),
    ],
)
def test_usage_comes_in_as_many_chunks_as_asked(tokenizer, options, with_usage):
    async def scenario():
        async with in_memory(saying("ab"), tokenizer) as served:
            answer = await served.chat(stream=True, stream_options=options)
        events = events_of(answer.text)
        assert sum(event.get("usage") is not None for event in events) == with_usage
        assert [e for e in events if not e["choices"]] == ([events[-1]] if with_usage else [])
        if with_usage > 1:
            counts = [event["usage"]["completion_tokens"] for event in events]
            assert counts == [1, 1, 2, 3, 3]

    run(scenario())


STOPS = [
    # text, stop, what is left
    ("one two three", ["two"], "one "),
    ("one two three", "thr", "one two "),
    ("xDEFGHIJ", ["FGH"], "xDE"),  # begins inside one token, ends with another
    ("xDEFGHIJ", ["EFG"], "xD"),  # ends inside a token
    (" x\nObservation: y", ["Observation"], " x\n"),
    ("Bob\nAlice is", ["\n", "Alice:"], "Bob"),
    (" Alice is", ["Alice:", "\n"], " Alice is"),  # a prefix that comes to nothing
    ("abcabcabd", ["abcabd"], "abc"),
    ("hi 😀!", ["😀"], "hi "),
    ("no stop", ["stopx"], "no stop"),
]


@pytest.mark.parametrize(("text", "stop", "left"), STOPS)
@pytest.mark.parametrize("tokens_per_step", [1, 3, 100])
def test_stop_string_cuts_the_same_text_in_both_modes(tokenizer, text, stop, left, tokens_per_step):
    async def scenario():
        engine = saying(text, tokens_per_step=tokens_per_step)
        async with in_memory(engine, tokenizer) as served:
            whole = (await served.chat(stop=stop)).json()
            stream = events_of(
                (
                    await served.chat(
                        stop=stop, stream=True, stream_options={"include_usage": True}
                    )
                ).text
            )
        choice = whole["choices"][0]
        assert choice["message"]["content"] == left
        assert joined(stream) == left
        assert stream[-1]["usage"] == whole["usage"]
        finish = stream[-2]["choices"][0]
        assert finish["finish_reason"] == choice["finish_reason"] == "stop"
        assert finish["stop_reason"] == choice["stop_reason"]
        stopped = left != text
        assert (choice["stop_reason"] is not None) is stopped
        if stopped:
            used = whole["usage"]["completion_tokens"]
            shown = tokenizer.decode(ids_of(text)[:used])
            assert choice["stop_reason"] in shown
            assert choice["stop_reason"] not in tokenizer.decode(ids_of(text)[: used - 1])
            assert [reason for _, reason in served.engine.aborted] == ["stop", "stop"]

    run(scenario())


def test_stop_string_can_be_kept(tokenizer):
    async def scenario():
        async with in_memory(saying("one two three"), tokenizer) as served:
            answer = (await served.chat(stop="two", include_stop_str_in_output=True)).json()
            assert answer["choices"][0]["message"]["content"] == "one two"

    run(scenario())


def test_stop_string_answers_without_the_engines_last_word(tokenizer):
    async def scenario():
        engine = saying("one two three")
        engine.abort = lambda *_args, **_kwargs: None  # an engine that is slow to end it
        engine.hold()
        async with in_memory(engine, tokenizer) as served:

            async def feed():
                await engine.until(lambda: engine.num_open == 1)
                for _ in range(7):
                    engine.step()

            _, answer = await asyncio.gather(feed(), served.chat(stop="two"))
            assert answer.json()["choices"][0]["message"]["content"] == "one "
            assert engine.num_open == 1
            engine.release()
            await engine.until(lambda: engine.num_open == 0)

    run(scenario())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "text", "stop_reason"),
    [
        ({"stop_token_ids": [GH]}, "xDEF", GH),
        ({"stop_token_ids": [GH], "include_stop_str_in_output": True}, "xDEFGH", GH),
        ({"stop_token_ids": [DEF], "min_tokens": 3}, "xDEFGH", None),
        ({"stop_token_ids": [DEF], "min_tokens": 2}, "x", DEF),
    ],
)
def test_stop_token_ends_the_text_before_it(tokenizer, stream, fields, text, stop_reason):
    async def scenario():
        async with in_memory(saying("xDEFGH"), tokenizer) as served:
            answer = await served.chat(stream=stream, **fields)
        if stream:
            events = events_of(answer.text)
            got, choice = joined(events), events[-1]["choices"][0]
        else:
            choice = answer.json()["choices"][0]
            got = choice["message"]["content"]
        assert (got, choice["stop_reason"]) == (text, stop_reason)

    run(scenario())


def test_characters_of_several_tokens_arrive_whole(tokenizer):
    text = "hi 😀 日本語 👨‍👩‍👧 Zoë"

    async def scenario():
        async with in_memory(saying(text), tokenizer) as served:
            stream = events_of((await served.chat(stream=True)).text)
            whole = (await served.chat()).json()
        assert "\ufffd" not in joined(stream)
        assert joined(stream) == whole["choices"][0]["message"]["content"] == text
        assert whole["usage"]["completion_tokens"] == len(ids_of(text)) + 1
        contents = [event["choices"][0]["delta"].get("content") for event in stream]
        assert "" not in contents[1:]

    run(scenario())


def test_new_name_of_max_tokens_wins_and_length_is_told(tokenizer):
    async def scenario():
        async with in_memory(saying("x" * 50), tokenizer) as served:
            for fields, count in (
                ({"max_tokens": 3}, 3),
                ({"max_completion_tokens": 4}, 4),
                ({"max_completion_tokens": 4, "max_tokens": 3}, 4),
            ):
                answer = (await served.chat(**fields)).json()
                assert answer["choices"][0]["finish_reason"] == "length"
                assert answer["usage"]["completion_tokens"] == count

    run(scenario())


def test_default_max_tokens_is_what_the_context_leaves(tokenizer):
    async def scenario():
        async with in_memory(saying("x" * 500), tokenizer) as served:
            answer = (await served.chat()).json()
            assert answer["usage"]["total_tokens"] == served.engine.ready.max_model_len

    run(scenario())


def test_messages_go_through_the_template_and_tokenize_agrees(tokenizer):
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "reasoning": "hm"},
        {"role": "user", "content": "c"},
    ]

    async def scenario():
        async with in_memory(saying("x"), tokenizer) as served:
            await served.chat(messages=messages)
            sent = served.engine.submitted[0].prompt_token_ids
            counted = await served.client.post("/tokenize", json={"messages": messages})
        assert tokenizer.decode(sent, skip_special_tokens=False) == (
            "<turn>system: be brief\n<turn>user: a\nb\n<turn>assistant: \n<turn>user: c\n"
            "<turn>assistant: "
        )
        assert counted.json()["tokens"] == sent

    run(scenario())


def test_final_message_can_be_continued(tokenizer):
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "It is"}]

    async def scenario():
        async with in_memory(saying("x"), tokenizer) as served:
            refused = await served.chat(messages=messages, continue_final_message=True)
            assert refused.status_code == 400
            assert refused.json()["error"]["param"] == "continue_final_message"
            answer = await served.chat(
                messages=messages, continue_final_message=True, add_generation_prompt=False
            )
            assert answer.status_code == 200
            sent = served.engine.submitted[0].prompt_token_ids
        text = tokenizer.decode(sent, skip_special_tokens=False)
        assert text == "<turn>user: a\n<turn>assistant: It is"

    run(scenario())


def test_nul_does_not_cut_a_prompt(tokenizer):
    async def scenario():
        async with in_memory(saying("x"), tokenizer) as served:
            counts = [
                (await served.complete(prompt=prompt)).json()["usage"]["prompt_tokens"]
                for prompt in ("a", "a\u0000b")
            ]
        assert counts == [1, 3]

    run(scenario())


def test_stream_interval_joins_tokens_but_not_the_first(tokenizer):
    async def scenario():
        async with in_memory(saying("abcdefg"), tokenizer) as served:
            events = events_of((await served.chat(stream=True, stream_interval=3)).text)
        contents = [event["choices"][0]["delta"].get("content") for event in events]
        assert contents == ["", "a", "bcd", "efg", None]

    run(scenario())


def test_model_defaults_apply_unless_the_request_says_otherwise(tokenizer):
    ready = engine_ready(default_sampling={"temperature": 0.2, "top_p": 0.9, "top_k": 50})

    async def scenario():
        async with in_memory(FakeEngine(ready), tokenizer) as served:
            await served.chat()
            await served.chat(temperature=0, top_p=0.5, top_k=-1, min_p=0.1, seed=7)
        first, second = (message.sampling for message in served.engine.submitted)
        assert (first.temperature, first.top_p, first.top_k) == (0.2, 0.9, 50)
        assert (second.temperature, second.top_p, second.top_k) == (0, 0.5, 0)
        assert (second.min_p, second.seed) == (0.1, 7)

    run(scenario())


def test_priority_salt_and_sampling_reach_the_engine(tokenizer):
    async def scenario():
        config = Config(scheduler=SchedulerConfig(scheduling_policy="priority"))
        async with in_memory(saying("x"), tokenizer, config) as served:
            await served.chat(
                priority=-3, cache_salt="s", ignore_eos=True, min_tokens=2, stop_token_ids=[9, 9]
            )
        (message,) = served.engine.submitted
        assert (message.priority, message.cache_salt) == (-3, "s")
        assert message.sampling.ignore_eos
        assert message.sampling.min_tokens == 2
        assert message.sampling.stop_token_ids == (9,)

    run(scenario())


def test_priority_without_the_policy_is_refused_and_not_ignored(tokenizer):
    async def scenario():
        async with in_memory(saying("x"), tokenizer) as served:
            refused = await served.chat(priority=5)
            assert refused.status_code == 400
            assert refused.json()["error"]["param"] == "priority"
            assert "--scheduling-policy" in refused.json()["error"]["message"]
            assert (await served.chat(priority=0)).status_code == 200

    run(scenario())


def test_script_needs_the_scripted_load_format(tokenizer):
    script = ids_of("scripted")

    async def scenario():
        async with in_memory(saying("x"), tokenizer) as served:
            refused = await served.chat(vllm_xargs={"script": script})
            assert refused.status_code == 400
            assert refused.json()["error"]["param"] == "vllm_xargs.script"
        config = model_config(load_format="scripted")
        async with in_memory(saying("x"), tokenizer, config) as served:
            answer = await served.chat(vllm_xargs={"script": script})
            assert answer.json()["choices"][0]["message"]["content"] == "scripted"
            for bad in ([300], ["a"], [True], "x", 5, [-1]):
                answer = await served.chat(vllm_xargs={"script": bad})
                assert answer.status_code == 400
            assert (await served.chat(vllm_xargs={"other": 1})).status_code == 400

    run(scenario())


def test_end_of_text_token_is_hidden_even_where_special_tokens_show(tokenizer):
    async def scenario():
        async with in_memory(saying("a<turn>"), tokenizer) as served:
            served.engine._plan = lambda _message: [*ids_of("a"), 1, *ids_of("b"), EOS]
            shown = await served.chat(skip_special_tokens=False)
            hidden = await served.chat()
        assert shown.json()["choices"][0]["message"]["content"] == "a<turn>b"
        assert hidden.json()["choices"][0]["message"]["content"] == "ab"

    run(scenario())


def test_model_without_a_template_says_so(tokenizer, monkeypatch):
    monkeypatch.setitem(tokenizer.chat_templates, "default", None)

    async def scenario():
        async with in_memory(saying("x"), tokenizer) as served:
            answer = await served.chat()
            assert answer.status_code == 400
            assert answer.json()["error"]["code"] == "no_chat_template"
            assert (await served.complete()).status_code == 200

    run(scenario())
