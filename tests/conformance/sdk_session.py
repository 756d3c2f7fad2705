"""What a user of the official Python SDK does, run under whichever version is importable.

Run as a program by `test_openai_sdk`: prints the SDK's version and "ok", or fails with a traceback.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import openai

MESSAGES: list[Any] = [
    {"role": "system", "content": "You are brief."},
    {"role": "user", "content": [{"type": "text", "text": "Name the capital of France."}]},
]


def check_models(client: openai.OpenAI) -> str:
    (model,) = list(client.models.list())
    assert client.models.retrieve(model.id).id == model.id
    return model.id


def check_chat(client: openai.OpenAI, model: str) -> None:
    fields: dict[str, Any] = {"model": model, "messages": MESSAGES, "temperature": 0}
    whole = client.chat.completions.create(**fields, max_completion_tokens=16)
    text = whole.choices[0].message.content
    assert text
    assert whole.choices[0].finish_reason in ("stop", "length")
    assert whole.usage is not None
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    assert whole.usage.prompt_tokens_details is not None
    chunks = list(
        client.chat.completions.create(
            **fields,
            max_completion_tokens=16,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    pieces = [c.choices[0].delta.content or "" for c in chunks if c.choices]
    assert "".join(pieces) == text
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert len({chunk.id for chunk in chunks}) == 1


def check_stream_helper(client: openai.OpenAI, model: str) -> None:
    with client.chat.completions.stream(
        model=model, messages=MESSAGES, temperature=0, max_tokens=200, stop=["."]
    ) as stream:
        text = "".join(event.delta for event in stream if event.type == "content.delta")
        final = stream.get_final_completion()
    assert final.choices[0].message.content == text
    assert "." not in text


def check_completions(client: openai.OpenAI, model: str) -> None:
    answer = client.completions.create(
        model=model, prompt=["The capital of France is", "One, two,"], max_tokens=4, temperature=0
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.choices[0].text.startswith(" Paris")
    assert answer.object == "text_completion"


def check_errors(client: openai.OpenAI, model: str) -> None:
    cases: list[tuple[type[openai.APIStatusError], str | None, dict[str, Any]]] = [
        (openai.NotFoundError, "model_not_found", {"model": "nobody", "prompt": "x"}),
        (openai.BadRequestError, "context_length_exceeded", {"model": model, "prompt": [7] * 9000}),
        (openai.BadRequestError, None, {"model": model, "prompt": "x", "temperature": -1}),
        (openai.BadRequestError, None, {"model": model, "prompt": "x", "logprobs": 3}),
    ]
    for kind, code, fields in cases:
        try:
            client.completions.create(**fields)
        except kind as error:
            assert code is None or error.code == code, error
            assert error.message
        else:
            raise AssertionError(f"{fields} was not refused")


async def check_async(base_url: str, model: str) -> None:
    async with openai.AsyncOpenAI(base_url=base_url, api_key="k") as client:
        stream = await client.chat.completions.create(
            model=model, messages=MESSAGES, temperature=0, max_tokens=8, stream=True
        )
        text = "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])
    assert text


def main() -> None:
    base_url = sys.argv[1]
    with openai.OpenAI(base_url=base_url, api_key="k", max_retries=0) as client:
        model = check_models(client)
        check_chat(client, model)
        check_stream_helper(client, model)
        check_completions(client, model)
        check_errors(client, model)
    asyncio.run(check_async(base_url, model))
    print(openai.__version__, "ok")


if __name__ == "__main__":
    main()
