"""Bodies that would take long to parse are refused before they are parsed."""

from __future__ import annotations

import asyncio
import gzip
import json
import time

import pytest

from atom_lite.api.body import MAX_BODY_BYTES, check_content
from atom_lite.errors import RequestError
from tests.unit.api.serving import in_memory, on_socket, run, saying

JSON = {"content-type": "application/json"}
SIZE = MAX_BODY_BYTES // 2


def filled(start: str, item: str, end: str) -> bytes:
    """A body of half the largest size, full of one item."""
    return (start + ",".join([item] * (SIZE // (len(item) + 1))) + end).encode()


HEAVY = [
    ("/v1/completions", filled('{"prompt":[', "1", "]}")),
    ("/v1/completions", filled('{"prompt":[', "[]", "]}")),
    ("/v1/completions", filled('{"prompt":"x","metadata":[', "[]", "]}")),
    ("/v1/completions", filled('{"prompt":"x","metadata":[', '{"a":1}', "]}")),
    ("/v1/completions", filled('{"prompt":"x","stop":[', '""', "]}")),
    ("/v1/completions", filled('{"prompt":"x",', '"name":1', "}")),
    ("/v1/chat/completions", filled('{"messages":[', '{"role":"user","content":""}', "]}")),
    (
        "/v1/chat/completions",
        filled('{"messages":[{"role":"user","content":[', '{"text":""}', "]}]}"),
    ),
]


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b'{"a":[' + b"[]," * 16382 + b"[]]}", "16385 lists and objects"),
        (b"{" + b'"a":1,' * 65536 + b'"a":1}', "65537 named values"),
        (b"[" + b"1," * 1048577 + b"1]", "1048577 values"),
    ],
)
def test_a_body_of_too_many_parts_is_told_which(body, named):
    with pytest.raises(RequestError, match=named) as refused:
        check_content(body)
    assert refused.value.status == 413


@pytest.mark.parametrize("text", ["a, b: {c} " * 200_000, '\\"{,:', "\\\\", '\\\\\\",' * 30_000])
def test_what_texts_hold_does_not_count(text):
    check_content(json.dumps({"prompt": text * 2, "metadata": text}).encode())


def test_heavy_bodies_hold_up_the_event_loop_for_a_moment_only(tokenizer):
    """Parsed, each of these would take half a second to two seconds."""

    async def scenario():
        async with in_memory(saying("x"), tokenizer) as served:
            for path, body in HEAVY:
                started = time.thread_time()
                answer = await served.client.post(path, content=body, headers=JSON)
                assert answer.status_code == 413, answer.text
                assert answer.json()["error"]["code"] == "request_too_large"
                assert time.thread_time() - started < 0.3
            assert served.engine.num_open == 0

    run(scenario())


def test_as_many_messages_as_are_taken_do_not_hold_up_the_event_loop(tokenizer):
    async def scenario():
        async with in_memory(saying("x"), tokenizer) as served:
            messages = [{"role": "user", "content": ""}] * 16_000
            asking = asyncio.create_task(served.chat(messages=messages))
            turns = 0
            while not asking.done():
                await asyncio.sleep(0.001)
                turns += 1
            assert asking.result().json()["error"]["code"] == "context_length_exceeded"
            assert turns > 5

    run(scenario())


def test_a_compressed_body_is_refused_by_name(tokenizer):
    async def scenario():
        async with on_socket(saying("x"), tokenizer) as served:
            for encoding, status in (("gzip", 400), ("br", 400), ("Identity", 200)):
                body = b'{"prompt":"x"}'
                headers = JSON | {"content-encoding": encoding}
                answer = await served.client.post(
                    "/v1/completions",
                    content=gzip.compress(body) if encoding == "gzip" else body,
                    headers=headers,
                )
                assert answer.status_code == status
                if status == 400:
                    assert encoding in answer.json()["error"]["message"]

    run(scenario())


def test_a_text_that_cannot_fit_is_refused_without_being_encoded(tokenizer, monkeypatch):
    def never(*_args, **_settings):
        raise AssertionError("encoded")

    monkeypatch.setattr(tokenizer, "encode", never)
    text = "x" * 2000  # no token has more than six characters, the context 256 tokens

    async def scenario():
        async with in_memory(saying("x"), tokenizer) as served:
            for answer, param in (
                (await served.complete(prompt=text), "prompt"),
                (await served.complete(prompt=["x" * 3_000_000]), "prompt"),
                (await served.chat(messages=[{"role": "user", "content": text}]), "messages"),
            ):
                error = answer.json()["error"]
                assert (error["param"], error["code"]) == (param, "context_length_exceeded")
                assert "maximum context length is 256 tokens" in error["message"]
            for answer in (
                await served.complete(prompt="x" * 3_000_000, truncate_prompt_tokens=5),
                await served.client.post("/tokenize", json={"prompt": "x" * 3_000_000}),
            ):
                assert answer.status_code == 400
                assert "longer than the 2097152" in answer.json()["error"]["message"]

    run(scenario())


def test_a_prompt_of_which_nothing_is_kept_is_the_truncation_s_fault(tokenizer):
    async def scenario():
        async with in_memory(saying("x"), tokenizer) as served:
            for fields in ({"truncate_prompt_tokens": 0}, {"truncate_prompt_tokens": -1}):
                answer = await served.complete(**fields, max_tokens=256)
                assert answer.status_code == 400
                assert answer.json()["error"]["param"] == "truncate_prompt_tokens"
                assert "256 of output ('max_tokens')" in answer.json()["error"]["message"]

    run(scenario())


def test_a_long_text_that_is_cut_or_counted_need_not_fit(tokenizer):
    async def scenario():
        async with in_memory(saying("x"), tokenizer) as served:
            text = "x" * 2000
            answer = await served.complete(prompt=text, truncate_prompt_tokens=5)
            assert answer.json()["usage"]["prompt_tokens"] == 5
            answer = await served.client.post("/tokenize", json={"prompt": text})
            assert answer.json()["count"] == 2000

    run(scenario())
