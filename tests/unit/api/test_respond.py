from __future__ import annotations

import asyncio
import json

import pytest

from tests.fakes.fake_engine import FakeEngine
from tests.unit.api.serving import (
    events_of,
    ids_of,
    in_memory,
    joined,
    on_socket,
    run,
    saying,
    server_config,
)

CHAT = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 200}
ERROR_FIELDS = {"message", "type", "param", "code"}


async def _closed_after_first_data(served, body):
    """Open a stream, read its first chunk, leave."""
    async with served.client.stream("POST", "/v1/chat/completions", json=body) as answer:
        async for chunk in answer.aiter_text():
            assert chunk.startswith("data: ")
            return


def test_client_that_leaves_a_stream_is_aborted_at_once(tokenizer):
    async def scenario():
        engine = saying("y" * 200)
        engine.hold()
        async with on_socket(engine, tokenizer) as served:
            leaving = asyncio.create_task(_closed_after_first_data(served, CHAT | {"stream": True}))
            await engine.until(lambda: engine.num_open == 1)
            engine.step()
            await leaving
            await engine.until(lambda: engine.num_open == 0)
            assert engine.aborted == [(1, "abort")]
            while served.app.state.frontend.open_requests:
                await asyncio.sleep(0)  # the answer's own task notices next
            assert served.metric("request_success_total", finished_reason="abort") == 1

    run(scenario())


@pytest.mark.parametrize("stream", [False, True])
def test_client_that_leaves_before_the_first_token_is_aborted_at_once(tokenizer, stream):
    async def scenario():
        engine = saying("y")
        engine.hold()
        async with on_socket(engine, tokenizer) as served:
            body = {"prompt": ["a", "b", "c"], "stream": stream}
            request = asyncio.create_task(served.client.post("/v1/completions", json=body))
            await engine.until(lambda: engine.num_open == 3)
            request.cancel()
            await engine.until(lambda: engine.num_open == 0)
            assert sorted(engine.aborted) == [(1, "abort"), (2, "abort"), (3, "abort")]
            assert served.metric("request_success_total", finished_reason="abort") == 3

    run(scenario())


def test_client_that_leaves_does_not_touch_another(tokenizer):
    async def scenario():
        engine = saying("a long answer for both")
        engine.hold()
        async with on_socket(engine, tokenizer) as served:
            stays = asyncio.create_task(served.chat())
            await engine.until(lambda: engine.num_open == 1)
            leaves = asyncio.create_task(served.chat(stream=True))
            await engine.until(lambda: engine.num_open == 2)
            leaves.cancel()
            await engine.until(lambda: engine.num_open == 1)
            engine.release()
            answer = (await stays).json()
            assert answer["choices"][0]["message"]["content"] == "a long answer for both"

    run(scenario())


def test_two_live_requests_may_share_a_request_id(tokenizer):
    async def scenario():
        async with in_memory(saying("x"), tokenizer) as served:
            answers = await asyncio.gather(*[served.chat(request_id="same") for _ in range(3)])
        assert [answer.json()["id"] for answer in answers] == ["chatcmpl-same"] * 3

    run(scenario())


def test_slow_reader_gets_its_text_joined(tokenizer):
    """The pump does not wait for the client, so what piles up leaves in one chunk."""

    async def scenario():
        engine = saying("abcdef")
        engine.hold()
        async with in_memory(engine, tokenizer) as served:
            request = asyncio.create_task(served.chat(stream=True))
            await engine.until(lambda: engine.num_open == 1)
            for _ in range(7):
                engine.step()
            events = events_of((await request).text)
        contents = [event["choices"][0]["delta"].get("content") for event in events]
        assert contents == ["", "abcdef", None]

    run(scenario())


def test_silent_stream_is_kept_alive_with_comments(tokenizer):
    async def scenario():
        engine = saying("x")
        engine.hold()
        config = server_config(sse_keep_alive_interval=0.01)
        async with (
            on_socket(engine, tokenizer, config) as served,
            served.client.stream(
                "POST", "/v1/chat/completions", json=CHAT | {"stream": True}
            ) as answer,
        ):
            parts = answer.aiter_text()
            assert await anext(parts) == ": keep-alive\n\n"
            engine.release()
            rest = "".join([part async for part in parts])
        assert joined(events_of(rest)) == "x"

    run(scenario())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("status", "kind"), [(400, "invalid_request_error"), (500, "server_error")]
)
def test_engine_that_refuses_a_sequence_gives_its_status(tokenizer, stream, status, kind):
    async def scenario():
        engine = FakeEngine()
        engine.refusal = (status, "it does not fit")
        async with in_memory(engine, tokenizer) as served:
            answer = await served.chat(stream=stream)
            assert answer.status_code == status
            error = answer.json()["error"]
            assert error["message"] == "it does not fit"
            assert error["type"] == kind
            assert served.metric("request_success_total", finished_reason="error") == 1

    run(scenario())


def test_engine_death_ends_every_open_answer_with_an_error(tokenizer):
    async def scenario():
        engine = saying("abc")
        engine.hold()
        async with in_memory(engine, tokenizer) as served:
            stream = asyncio.create_task(served.chat(stream=True))
            several = asyncio.create_task(served.complete(prompt=["a", "b"], stream=True))
            await engine.until(lambda: engine.num_open == 3)
            engine.step()
            for _ in range(20):
                await asyncio.sleep(0)  # let the first chunks out
            whole = asyncio.create_task(served.chat())
            await engine.until(lambda: engine.num_open == 4)
            engine.die("killed, see /var/log/engine/out.txt at 0x7f00")
            for answer in (await stream, await several):
                assert answer.status_code == 200
                events = events_of(answer.text)
                assert set(events[-1]["error"]) == ERROR_FIELDS
                assert "error" not in events[-2]
                assert 'finish_reason":"' not in answer.text
            answer = await whole
            assert answer.status_code == 500
            assert answer.json()["error"]["message"] == "killed, see <path>"
            after = await served.chat()
            assert after.status_code == 503
            assert after.headers["retry-after"] == "1"
            assert after.json()["error"]["code"] == "engine_dead"
            health = await served.client.get("/health")
            assert health.status_code == 503
            assert served.app.state.frontend.open_requests == 0

    run(scenario())


def test_abort_of_the_operator_ends_streams_properly(tokenizer):
    async def scenario():
        engine = saying("abc")
        engine.hold()
        async with in_memory(engine, tokenizer) as served:
            stream = asyncio.create_task(served.chat(stream=True))
            whole = asyncio.create_task(served.chat())
            await engine.until(lambda: engine.num_open == 2)
            frontend = served.app.state.frontend
            assert frontend.open_requests == 2
            frontend.abort_all()
            events = events_of((await stream).text)
            assert events[-1]["choices"][0]["finish_reason"] == "abort"
            assert (await whole).json()["choices"][0]["finish_reason"] == "abort"
            assert engine.num_open == 0

    run(scenario())


def test_running_streams_end_well_during_shutdown(tokenizer):
    async def scenario():
        engine = saying("abc")
        engine.hold()
        async with in_memory(engine, tokenizer) as served:
            stream = asyncio.create_task(served.chat(stream=True))
            await engine.until(lambda: engine.num_open == 1)
            frontend = served.app.state.frontend
            frontend.begin_shutdown()
            refused = await served.chat()
            assert refused.status_code == 503
            assert refused.headers["retry-after"] == "1"
            assert refused.json()["error"]["code"] == "shutting_down"
            assert (await served.client.get("/health")).status_code == 503
            assert (await served.client.get("/metrics")).status_code == 200
            engine.release()
            assert joined(events_of((await stream).text)) == "abc"
            assert frontend.open_requests == 0

    run(scenario())


def test_stream_over_a_socket_is_chunked_as_it_is_made(tokenizer):
    async def scenario():
        engine = saying("abc")
        engine.hold()
        async with on_socket(engine, tokenizer) as served:
            body = CHAT | {"stream": True}
            seen = []

            async def read():
                async with served.client.stream(
                    "POST", "/v1/chat/completions", json=body
                ) as answer:
                    async for text in answer.aiter_text():
                        seen.append(text)
                        engine.step()

            reading = asyncio.create_task(read())
            await engine.until(lambda: engine.num_open == 1)
            engine.step()
            await reading
        assert joined(events_of("".join(seen))) == "abc"
        assert len(seen) >= 4

    run(scenario())


def test_line_separators_in_text_cannot_break_a_line_reader(tokenizer):
    text = "a\u2028b\u2029c\u0085d\r\ne"

    async def scenario():
        async with in_memory(FakeEngine(plan=lambda _m: ids_of(text)), tokenizer) as served:
            plain = await served.chat(stream=True)
            echoed = await served.complete(prompt=text, echo=True, stream=True, stop=[text])
        for answer, expected in ((plain, text), (echoed, text)):
            payloads = [
                json.loads(line.removeprefix("data: "))
                for line in answer.text.splitlines()
                if line and line != "data: [DONE]"
            ]
            assert joined(payloads) == expected
        assert payloads[-1]["choices"][0]["stop_reason"] == text

    run(scenario())


def test_bug_in_the_text_pipeline_is_a_500_and_leaves_nothing_running(tokenizer, monkeypatch):
    def broken(*_args, **_kwargs):
        raise ZeroDivisionError("secret detail")

    async def scenario():
        engine = saying("abc" * 50)
        async with in_memory(engine, tokenizer) as served:
            monkeypatch.setattr("atom_lite.text.output.OutputText.push", broken)
            answer = await served.chat()
            assert answer.status_code == 500
            assert "secret" not in answer.text
            await engine.until(lambda: engine.num_open == 0)

    run(scenario())
