"""What a user of the official Python SDK does, run under whichever version is importable.

Run as a program by `test_openai_sdk`: prints the SDK's version and "ok", or fails with a traceback.
"""

from __future__ import annotations

import asyncio
import json
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


def check_chat_logprobs(client: openai.OpenAI, model: str) -> None:
    fields: dict[str, Any] = {"model": model, "messages": MESSAGES, "temperature": 0}
    fields |= {"max_tokens": 6, "logprobs": True, "top_logprobs": 2, "n": 2}
    whole = client.chat.completions.create(**fields)
    assert [choice.index for choice in whole.choices] == [0, 1]
    told = whole.choices[0].logprobs
    assert told is not None
    assert told.content
    shown = b"".join(bytes(entry.bytes or []) for entry in told.content)
    assert shown.decode().startswith(whole.choices[0].message.content or "")
    for entry in told.content:
        assert entry.top_logprobs[0].token == entry.token  # greedy
        assert entry.logprob == entry.top_logprobs[0].logprob <= 0
        assert len(entry.top_logprobs) == 2
    streamed: dict[int, list[Any]] = {0: [], 1: []}
    for chunk in client.chat.completions.create(**fields, stream=True):
        for choice in chunk.choices:
            if choice.logprobs is not None:
                streamed[choice.index] += choice.logprobs.content or []
    for index, entries in streamed.items():
        expected = whole.choices[index].logprobs
        assert expected is not None
        assert [entry.token for entry in entries] == [e.token for e in expected.content or []]
    fields |= {"max_tokens": 200, "stop": ["."]}  # the helper raises where the length ends it
    with client.chat.completions.stream(**fields) as stream:
        final = stream.get_final_completion()
    for choice in final.choices:
        assert choice.logprobs is not None
        shown = b"".join(bytes(entry.bytes or []) for entry in choice.logprobs.content or [])
        assert shown.decode() == choice.message.content


def check_completion_logprobs(client: openai.OpenAI, model: str) -> None:
    prompt = "The capital of France is"
    answer = client.completions.create(
        model=model, prompt=prompt, max_tokens=2, temperature=0, echo=True, logprobs=1
    )
    (choice,) = answer.choices
    lists = choice.logprobs
    assert lists is not None
    assert choice.text.startswith(prompt)
    assert lists.tokens
    assert lists.token_logprobs
    assert lists.text_offset
    assert lists.top_logprobs
    sizes = [len(lists.tokens), len(lists.token_logprobs), len(lists.text_offset)]
    assert [*sizes, len(lists.top_logprobs)] == [sizes[0]] * 4
    assert lists.token_logprobs[0] is None
    assert all(value is not None and value <= 0 for value in lists.token_logprobs[1:])
    for offset, token in zip(lists.text_offset, lists.tokens, strict=True):
        assert choice.text.startswith(token, offset)
    best = client.completions.create(
        model=model, prompt=prompt, max_tokens=4, n=2, best_of=3, seed=1
    )
    assert [each.index for each in best.choices] == [0, 1]


CITY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "kind": {"enum": ["capital", "town"]},
    },
    "required": ["city", "kind"],
    "additionalProperties": False,
}


def check_structured_output(client: openai.OpenAI, model: str) -> None:
    answer = client.chat.completions.create(
        model=model,
        messages=MESSAGES,
        max_tokens=60,
        temperature=1,
        seed=3,
        n=2,
        logprobs=True,
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "city", "strict": True, "schema": CITY},
        },
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    for choice in answer.choices:
        assert choice.finish_reason == "stop"
        value = json.loads(choice.message.content or "")
        assert value.keys() == {"city", "kind"}
        assert value["kind"] in ("capital", "town")
        assert choice.logprobs is not None
        shown = b"".join(bytes(entry.bytes or []) for entry in choice.logprobs.content or [])
        assert shown.decode().startswith(choice.message.content or "")


def check_seed_and_bias(client: openai.OpenAI, model: str) -> None:
    fields: dict[str, Any] = {"model": model, "prompt": "One, two,", "max_tokens": 6}
    first, again = (
        client.completions.create(**fields, temperature=1, seed=7, n=2) for _ in range(2)
    )
    texts = [choice.text for choice in first.choices]
    assert texts == [choice.text for choice in again.choices]
    assert len(set(texts)) == 2
    biased = client.completions.create(
        **fields,
        temperature=0,
        logit_bias={"33": 100},
        extra_body={"return_token_ids": True, "top_k": 5, "min_tokens": 6},
    )
    (choice,) = biased.choices
    assert choice.model_extra is not None
    assert choice.model_extra["token_ids"] == [33] * 6


def check_errors(client: openai.OpenAI, model: str) -> None:
    cases: list[tuple[type[openai.APIStatusError], str | None, dict[str, Any]]] = [
        (openai.NotFoundError, "model_not_found", {"model": "nobody", "prompt": "x"}),
        (openai.BadRequestError, "context_length_exceeded", {"model": model, "prompt": [7] * 9000}),
        (openai.BadRequestError, None, {"model": model, "prompt": "x", "temperature": -1}),
        (openai.BadRequestError, None, {"model": model, "prompt": "x", "logprobs": 21}),
        (openai.BadRequestError, None, {"model": model, "prompt": "x", "logit_bias": {"99999": 1}}),
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
        check_chat_logprobs(client, model)
        check_completion_logprobs(client, model)
        check_structured_output(client, model)
        check_seed_and_bias(client, model)
        check_errors(client, model)
    asyncio.run(check_async(base_url, model))
    print(openai.__version__, "ok")


if __name__ == "__main__":
    main()
