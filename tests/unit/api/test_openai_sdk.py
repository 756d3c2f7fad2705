"""The official client against the application on a real socket."""

from __future__ import annotations

import asyncio

import openai
import pytest

from tests.unit.api.serving import MODEL, on_socket, run, saying, server_config

MESSAGES = [{"role": "user", "content": "x"}]


def _client(served, **settings):
    return openai.AsyncOpenAI(
        base_url=served.base_url + "/v1", api_key="key", max_retries=0, **settings
    )


def test_sdk_lists_models_chats_and_completes(tokenizer):
    async def scenario():
        async with (
            on_socket(saying("hi 😀"), tokenizer, server_config(api_key=("key",))) as served,
            _client(served) as client,
        ):
            assert [model.id async for model in client.models.list()] == [MODEL]
            assert (await client.models.retrieve(MODEL)).id == MODEL
            chat = await client.chat.completions.create(model=MODEL, messages=MESSAGES)
            assert chat.choices[0].message.content == "hi 😀"
            assert chat.choices[0].finish_reason == "stop"
            assert chat.usage.prompt_tokens_details.cached_tokens == 0
            text = await client.completions.create(model=MODEL, prompt=["a", "b"], max_tokens=3)
            assert [choice.text for choice in text.choices] == ["hi ", "hi "]
            assert text.choices[0].finish_reason == "length"

    run(scenario())


def test_sdk_streams_both_kinds(tokenizer):
    async def scenario():
        async with on_socket(saying("hi 😀"), tokenizer) as served, _client(served) as client:
            stream = await client.chat.completions.create(
                model=MODEL, messages=MESSAGES, stream=True, stream_options={"include_usage": True}
            )
            chunks = [chunk async for chunk in stream]
            deltas = [c.choices[0].delta.content or "" for c in chunks if c.choices]
            assert "".join(deltas) == "hi 😀"
            assert chunks[-1].usage.completion_tokens == 8
            assert chunks[-2].choices[0].finish_reason == "stop"
            async with client.chat.completions.stream(model=MODEL, messages=MESSAGES) as helper:
                final = await helper.get_final_completion()
            assert final.choices[0].message.content == "hi 😀"
            parts = await client.completions.create(model=MODEL, prompt="a", stream=True)
            assert "".join([part.choices[0].text async for part in parts]) == "hi 😀"

    run(scenario())


def test_sdk_raises_the_exception_of_each_status(tokenizer):
    async def scenario():
        config = server_config(api_key=("key",))
        async with on_socket(saying("x"), tokenizer, config) as served, _client(served) as client:
            create = client.chat.completions.create
            with pytest.raises(openai.BadRequestError) as bad:
                await create(model=MODEL, messages=MESSAGES, max_tokens=9999)
            assert bad.value.code == "context_length_exceeded"
            assert bad.value.param == "max_tokens"
            with pytest.raises(openai.NotFoundError) as missing:
                await create(model="other", messages=MESSAGES)
            assert missing.value.code == "model_not_found"
            with pytest.raises(openai.AuthenticationError):
                await client.with_options(api_key="wrong").models.list()
            served.engine.die()
            with pytest.raises(openai.InternalServerError) as dead:
                await create(model=MODEL, messages=MESSAGES)
            assert dead.value.status_code == 503

    run(scenario())


def test_sdk_raises_when_a_stream_breaks(tokenizer):
    async def scenario():
        engine = saying("abc")
        engine.hold()
        async with on_socket(engine, tokenizer) as served, _client(served) as client:
            opening = asyncio.create_task(
                client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
            )
            await engine.until(lambda: engine.num_open == 1)
            engine.step()
            stream = await opening
            assert (await anext(stream)).choices[0].delta.role == "assistant"
            engine.die()
            with pytest.raises(openai.APIError):
                async for _ in stream:
                    pass

    run(scenario())
