from __future__ import annotations

import asyncio
import json
import random

import pytest

from atom_lite.api import body as body_limits
from atom_lite.api.faults import error_body
from tests.unit.api.serving import in_memory, on_socket, run, saying

JSON = {"content-type": "application/json"}
ERROR_FIELDS = {"message", "type", "param", "code"}
DEEP = b'{"prompt":"x","metadata":' + b"[" * 10_000 + b"]" * 10_000 + b"}"


def _check_error(answer, status):
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(answer.json()) == {"error"}
    assert set(error) == ERROR_FIELDS
    assert isinstance(error["message"], str)
    return error


BAD_BODIES = [
    (b"", None),
    (b"[1]", None),
    (b"null", None),
    (b'"x"', None),
    (b"{", None),
    (b"{'prompt':'x'}", None),
    (b"\xff\xfe", None),
    (b'{"prompt":"\xff"}', None),
    (b'{"prompt":"\\ud83d"}', None),
    (b'{"prompt":"x","metadata":{"a":"\\udc00"}}', None),
    (DEEP, None),
    (b'{"prompt":"x","temperature":NaN}', "temperature"),
    (b'{"prompt":"x","temperature":Infinity}', "temperature"),
    (b'{"prompt":"x","temperature":1e999}', "temperature"),
    (b'{"prompt":"x","seed":' + b"9" * 1000 + b"}", "seed"),
    (b'{"prompt":"x","seed":' + b"9" * 10000 + b"}", None),
    (b'{"prompt":"x","seed":9223372036854775808}', "seed"),
    (b'{"prompt":"x","max_tokens":0}', "max_tokens"),
    (b'{"prompt":"x","max_tokens":-1}', "max_tokens"),
    (b'{"prompt":"x","max_tokens":1.5}', "max_tokens"),
    (b'{"prompt":"x","max_tokens":"many"}', "max_tokens"),
    (b'{"prompt":"x","max_tokens":99999999999999999999}', "max_tokens"),
    (b'{"prompt":"x","max_tokens":"5"}', "max_tokens"),
    (b'{"prompt":"x","max_tokens":true}', "max_tokens"),
    (b'{"prompt":"x","max_tokens":1e308}', "max_tokens"),
    (b'{"prompt":"x","temperature":"1"}', "temperature"),
    (b'{"prompt":"x","temperature":true}', "temperature"),
    (b'{"prompt":"x","stream":1}', "stream"),
    (b'{"prompt":"x","stream":"true"}', "stream"),
    (
        b'{"prompt":"x","stream":true,"stream_options":{"include_usage":1}}',
        "stream_options.include_usage",
    ),
    (b'{"prompt":"x","stop_token_ids":[1,true]}', "stop_token_ids.1"),
    (b'{"prompt":[1,true]}', "prompt.1"),
    (b'{"prompt":["a",1]}', "prompt.1"),
    (b'{"prompt":[[1],"a"]}', "prompt.1"),
    (b'{"prompt":"x","temperature":-1}', "temperature"),
    (b'{"prompt":"x","temperature":2.1}', "temperature"),
    (b'{"prompt":"x","top_p":0}', "top_p"),
    (b'{"prompt":"x","top_p":1.1}', "top_p"),
    (b'{"prompt":"x","top_k":-2}', "top_k"),
    (b'{"prompt":"x","min_p":-0.1}', "min_p"),
    (b'{"prompt":"x","stop":""}', "stop"),
    (b'{"prompt":"x","stop":["a",""]}', "stop.1"),
    (b'{"prompt":"x","stop":5}', "stop"),
    (b'{"prompt":"x","stop_token_ids":[300]}', "stop_token_ids"),
    (b'{"prompt":"x","stop_token_ids":[-1]}', "stop_token_ids"),
    (b'{"prompt":"x","min_tokens":9,"max_tokens":8}', "min_tokens"),
    (b'{"prompt":"x","stream_options":{}}', "stream_options"),
    (b'{"prompt":"x","cache_salt":""}', "cache_salt"),
    (b'{"prompt":"x","request_id":"a b"}', "request_id"),
    (b'{"prompt":"x","request_id":"a\\r\\nset-cookie: x"}', "request_id"),
    (b'{"prompt":"x","vllm_xargs":5}', "vllm_xargs"),
    (b'{"prompt":5}', "prompt"),
    (b'{"prompt":null}', "prompt"),
    (b'{"prompt":{}}', "prompt"),
    (b'{"prompt":[]}', "prompt"),
    (b'{"prompt":[[]]}', "prompt"),
    (b'{"prompt":""}', "prompt"),
    (b'{"prompt":["x",""]}', "prompt"),
    (b'{"prompt":[1,"a"]}', "prompt.1"),
    (b'{"prompt":[300]}', "prompt"),
    (b'{"prompt":[-1]}', "prompt"),
    (b'{"prompt":[1e30]}', "prompt.0"),
    (b"{}", "prompt"),
]


def test_a_list_that_is_too_long_is_told_so_and_not_taken_for_another_kind(tokenizer):
    async def scenario():
        async with in_memory(saying("x"), tokenizer) as served:
            for prompt in (["x"] * 2000, [[5]] * 2000):
                error = _check_error(await served.complete(prompt=prompt), 400)
                assert error["param"] == "prompt"
                assert "at most 1024 items" in error["message"]

    run(scenario())


def test_a_whole_number_may_be_written_with_a_point(tokenizer):
    async def scenario():
        async with in_memory(saying("x"), tokenizer) as served:
            answer = await served.client.post(
                "/v1/completions",
                content=b'{"prompt":"x","max_tokens":3.0,"seed":1e3,"top_k":-1.0,"temperature":1}',
                headers=JSON,
            )
            assert answer.status_code == 200
            assert served.engine.submitted[0].sampling.max_tokens == 3
            assert served.engine.submitted[0].sampling.seed == 1000

    run(scenario())


def test_bad_completion_body_is_a_400_that_names_the_field(tokenizer):
    async def scenario():
        async with in_memory(saying("x"), tokenizer) as served:
            for body, param in BAD_BODIES:
                answer = await served.client.post("/v1/completions", content=body, headers=JSON)
                error = _check_error(answer, 400)
                assert error["type"] == "invalid_request_error"
                assert error["param"] == param, (body[:80], error)
                assert not served.engine.submitted, body[:80]

    run(scenario())


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
BAD_MESSAGES = [
    ([], "messages"),
    (None, "messages"),
    ("hi", "messages"),
    ([5], "messages.0"),
    ([{"content": "x"}], "messages.0.role"),
    ([{"role": "", "content": "x"}], "messages.0.role"),
    ([{"role": "user"}], "messages.0.content"),
    ([{"role": "user", "content": 5}], "messages.0.content"),
    ([{"role": "user", "content": [5]}], "messages.0.content.0"),
    ([{"role": "user", "content": [{"type": "text"}]}], "messages.0.content.0.text"),
    ([{"role": "user", "content": [{"type": "image_url"}]}], "messages.0.content.0"),
    ([{"role": "user", "content": [{"type": "input_audio"}]}], "messages.0.content.0"),
    ([{"role": "function", "content": "x"}], "messages.0.role"),
    ([{"role": "tool"}], "messages.0.content"),
    ([{"role": "user", "content": "x", "tool_calls": [CALL]}], "messages.0.tool_calls"),
    (
        [
            {
                "role": "assistant",
                "tool_calls": [{**CALL, "function": {"name": "f", "arguments": "{"}}],
            }
        ],
        "messages.0.tool_calls.0.function.arguments",
    ),
    (
        [
            {
                "role": "assistant",
                "tool_calls": [{**CALL, "function": {"name": "f", "arguments": "[]"}}],
            }
        ],
        "messages.0.tool_calls.0.function.arguments",
    ),
]


def test_bad_messages_are_a_400_that_names_the_place(tokenizer):
    async def scenario():
        async with in_memory(saying("x"), tokenizer) as served:
            for messages, param in BAD_MESSAGES:
                answer = await served.chat(messages=messages)
                error = _check_error(answer, 400)
                assert error["param"] == param, (messages, error)

    run(scenario())


def test_template_arguments_cannot_break_the_call(tokenizer):
    async def scenario():
        async with in_memory(saying("x"), tokenizer) as served:
            for name in ("messages", "documents", "add_generation_prompt"):
                answer = await served.chat(chat_template_kwargs={name: 1})
                _check_error(answer, 400)
            assert (
                await served.chat(chat_template_kwargs={"x-y": 1, "self": 2})
            ).status_code == 200

    run(scenario())


@pytest.mark.parametrize("stream", [False, True])
def test_too_long_prompt_is_a_400_with_code_and_both_lengths(tokenizer, stream):
    async def scenario():
        async with in_memory(saying("x"), tokenizer) as served:
            answer = await served.complete(prompt="a" * 300, stream=stream)
            error = _check_error(answer, 400)
            assert error["code"] == "context_length_exceeded"
            assert error["param"] == "prompt"
            assert "256" in error["message"]
            assert "300" in error["message"]
            answer = await served.chat(
                messages=[{"role": "user", "content": "a" * 300}], stream=stream
            )
            assert _check_error(answer, 400)["param"] == "messages"
            answer = await served.complete(prompt="aaa", max_tokens=254, stream=stream)
            error = _check_error(answer, 400)
            assert (error["code"], error["param"]) == ("context_length_exceeded", "max_tokens")
            answer = await served.complete(prompt="aaa", max_tokens=253, stream=stream)
            assert answer.status_code == 200

    run(scenario())


def test_wrong_content_type_is_a_400(tokenizer):
    async def scenario():
        async with in_memory(saying("x"), tokenizer) as served:
            for headers in ({}, {"content-type": "text/plain"}, {"content-type": "a" * 5000}):
                answer = await served.client.post(
                    "/v1/completions", content=b'{"prompt":"x"}', headers=headers
                )
                _check_error(answer, 400)
            answer = await served.client.post(
                "/v1/completions",
                content=b'{"prompt":"x"}',
                headers={"content-type": "Application/JSON; charset=utf-8"},
            )
            assert answer.status_code == 200

    run(scenario())


def test_body_over_the_limit_is_a_413(tokenizer, monkeypatch):
    monkeypatch.setattr(body_limits, "MAX_BODY_BYTES", 1000)

    async def scenario():
        async with on_socket(saying("x"), tokenizer) as served:
            answer = await served.complete(prompt="x" * 1000)
            assert _check_error(answer, 413)["code"] == "request_too_large"
            assert (await served.complete()).status_code == 200

    run(scenario())


def test_unknown_model_is_a_404_with_code_and_param(tokenizer):
    async def scenario():
        async with in_memory(saying("x"), tokenizer) as served:
            for answer in (
                await served.chat(model="other"),
                await served.complete(model="other"),
                await served.client.get("/v1/models/other/one"),
                await served.client.post("/tokenize", json={"model": "other", "prompt": "x"}),
                await served.client.post("/detokenize", json={"model": "other", "tokens": []}),
            ):
                error = _check_error(answer, 404)
                assert error["type"] == "not_found_error"
                assert (error["code"], error["param"]) == ("model_not_found", "model")

    run(scenario())


def test_unknown_path_and_method_have_the_nested_shape(tokenizer):
    async def scenario():
        async with in_memory(saying("x"), tokenizer) as served:
            error = _check_error(await served.client.get("/v1/nothing"), 404)
            assert "/v1/nothing" in error["message"]
            answer = await served.client.get("/v1/completions")
            _check_error(answer, 405)
            assert answer.headers["allow"] == "POST"

    run(scenario())


def test_odd_targets_and_headers_are_answered_like_any_other(tokenizer):
    async def scenario():
        async with on_socket(saying("x"), tokenizer) as served:
            port = int(served.base_url.rpartition(":")[2])
            for target, headers, status in (
                (b"/nothing?\xff", b"host: a", b"404"),
                (b"/health?\xff\xfe", b"host: [", b"200"),
                (b"/health/?\xff", b"host: a", b"307"),
                (b"/nothing", b"host: [::bad", b"404"),
                (b"/%ff%00", b"host: a", b"404"),
                (b"//health", b"host: a", b"404"),
                (b"/v1/models/%00", b"host: \xff", b"404"),
                (b"/health", b"host: a\r\ncontent-length: 0\r\nx-request-id: \xff", b"200"),
                (b"/health", b"host: a\r\nx-long: " + b"y" * 20_000, b"200"),
            ):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(
                    b"GET " + target + b" HTTP/1.1\r\n" + headers + b"\r\nconnection: close\r\n\r\n"
                )
                answer = await reader.read()
                writer.close()
                assert answer.split(b" ")[1] in (status, b"400"), (target, headers, answer)

    run(scenario())


def test_unexpected_exception_is_a_500_without_its_text(tokenizer, monkeypatch):
    async def scenario():
        async with in_memory(saying("x"), tokenizer) as served:

            def broken():
                raise RuntimeError("secret /etc/atom/key")

            monkeypatch.setattr(served.engine, "next_sequence_id", broken)
            answer = await served.chat()
            error = _check_error(answer, 500)
            assert error["message"] == "Internal server error"
            assert answer.headers["x-request-id"]
            counted = served.metrics.registry.get_sample_value(
                "http_requests_total",
                {"handler": "/v1/chat/completions", "method": "POST", "status": "5xx"},
            )
            assert counted == 1

    run(scenario())


def test_messages_are_bounded_and_without_addresses_or_paths():
    body = error_body(500, "<Thing object at 0x7f12ab> in /usr/lib/python3/x.py " + "y" * 5000)
    message = body["error"]["message"]
    assert message.startswith("<Thing object> in <path> y")
    assert len(message) <= 1000
    assert error_body(400, "\ud83d")["error"]["message"] == "\\ud83d"
    assert "org/model" in error_body(500, "org/model")["error"]["message"]


def _random_value(rng: random.Random, depth: int = 0):
    kinds = [
        lambda: rng.choice([None, True, False]),
        lambda: rng.choice([0, 1, -1, 2**31, -(2**63), 2**64, 10**30]),
        lambda: rng.choice([0.0, 0.5, 1.5, -1e308, 1e-320]),
        lambda: rng.choice(["", "x", "\u0000", "😀", "stop", "a" * 300, "../../etc"]),
    ]
    if depth < 3:
        kinds += [
            lambda: [_random_value(rng, depth + 1) for _ in range(rng.randint(0, 3))],
            lambda: {
                rng.choice(["type", "text", "role", "content", "a", ""]): _random_value(
                    rng, depth + 1
                )
                for _ in range(rng.randint(0, 3))
            },
        ]
    return rng.choice(kinds)()


def _fields() -> list[str]:
    from atom_lite.api.not_yet import NOT_YET
    from atom_lite.api.schema_chat import ChatCompletionRequest
    from atom_lite.api.schema_completions import CompletionRequest
    from atom_lite.api.schema_tokenize import TokenizeRequest

    declared = (
        ChatCompletionRequest.model_fields
        | CompletionRequest.model_fields
        | TokenizeRequest.model_fields
    )
    return sorted([*declared, *NOT_YET, "tokens", "made_up"])


def _fuzz(tokenizer, seed: int, count: int) -> None:
    rng, fields = random.Random(seed), _fields()
    base = {"messages": [{"role": "user", "content": "x"}], "prompt": "x", "tokens": [1]}

    async def scenario():
        seen = set()
        async with in_memory(saying("hello"), tokenizer) as served:
            for _ in range(count):
                body = dict(base)
                path = rng.choice(
                    ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"]
                )
                if path == "/tokenize":
                    body.pop(rng.choice(["messages", "prompt"]))
                for name in rng.sample(fields, rng.randint(1, 3)):
                    body[name] = _random_value(rng)
                raw = json.dumps(body).encode()
                if rng.random() < 0.1:
                    raw = raw[: rng.randint(0, len(raw))]
                answer = await served.client.post(path, content=raw, headers=JSON)
                assert answer.status_code < 500, (seed, path, raw, answer.text)
                if answer.status_code != 200:
                    _check_error(answer, answer.status_code)
                seen.add(answer.status_code)
            assert served.engine.num_open == 0
        assert seen >= {200, 400}

    run(scenario())


def test_no_body_makes_a_5xx(tokenizer):
    _fuzz(tokenizer, seed=1, count=400)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(2, 12))
def test_no_body_makes_a_5xx_in_many_tries(tokenizer, seed):
    _fuzz(tokenizer, seed=seed, count=2000)
