from __future__ import annotations

import pytest

from tests.unit.api.serving import MODEL, events_of, ids_of, in_memory, joined, run, saying


def test_whole_answer_has_every_field_that_clients_read(tokenizer):
    async def scenario():
        async with in_memory(saying("hello"), tokenizer) as served:
            body = (await served.complete(prompt="ab")).json()
        assert body.pop("id").startswith("cmpl-")
        assert body.pop("created") > 1_700_000_000
        assert body.pop("system_fingerprint").startswith("atom_lite-")
        assert body == {
            "object": "text_completion",
            "model": MODEL,
            "choices": [
                {
                    "index": 0,
                    "text": "hello",
                    "logprobs": None,
                    "finish_reason": "stop",
                    "stop_reason": None,
                }
            ],
            "usage": {
                "prompt_tokens": 2,
                "completion_tokens": 6,
                "total_tokens": 8,
                "prompt_tokens_details": {"cached_tokens": 0},
            },
            "service_tier": None,
        }

    run(scenario())


def test_default_is_sixteen_tokens_or_what_fits(tokenizer):
    async def scenario():
        async with in_memory(saying("x" * 99), tokenizer) as served:
            for fields in ({}, {"max_tokens": None}):
                answer = await served.client.post("/v1/completions", json={"prompt": "a"} | fields)
                assert answer.json()["usage"]["completion_tokens"] == 16
            answer = await served.client.post("/v1/completions", json={"prompt": "a" * 250})
            assert answer.json()["usage"]["completion_tokens"] == 6

    run(scenario())


PROMPTS = [
    ("a", ["a"]),
    (["a", "bc"], ["a", "bc"]),
    (ids_of("abc"), ["abc"]),
    ([ids_of("abc"), ids_of("d")], ["abc", "d"]),
]


def test_both_names_of_max_tokens_are_taken(tokenizer):
    async def scenario():
        async with in_memory(saying("y" * 99), tokenizer) as served:
            for fields, count in (
                ({"max_tokens": 3}, 3),
                ({"max_tokens": 3, "max_completion_tokens": 5}, 5),
                ({"max_tokens": None, "max_completion_tokens": 20}, 20),
            ):
                usage = (await served.complete(**fields)).json()["usage"]
                assert usage["completion_tokens"] == count

    run(scenario())


@pytest.mark.parametrize(("prompt", "texts"), PROMPTS)
@pytest.mark.parametrize("stream", [False, True])
def test_each_prompt_gives_a_choice_in_its_order(tokenizer, prompt, texts, stream):
    async def scenario():
        engine = saying("")
        engine._plan = lambda message: [*message.prompt_token_ids, *ids_of("!")]
        async with in_memory(engine, tokenizer) as served:
            options = {"stream_options": {"include_usage": True}} if stream else {}
            answer = await served.complete(prompt=prompt, stream=stream, **options)
        if stream:
            events = events_of(answer.text)
            got = [joined(events, index) for index in range(len(texts))]
            usage = events[-1]["usage"]
            finishes = [
                choice["index"]
                for event in events
                for choice in event["choices"]
                if choice["finish_reason"] == "stop"
            ]
            assert sorted(finishes) == list(range(len(texts)))
        else:
            choices = answer.json()["choices"]
            assert [choice["index"] for choice in choices] == list(range(len(texts)))
            got = [choice["text"] for choice in choices]
            usage = answer.json()["usage"]
        assert got == [text + "!" for text in texts]
        assert usage["prompt_tokens"] == sum(map(len, texts))
        assert usage["completion_tokens"] == sum(len(text) + 2 for text in texts)

    run(scenario())


def test_stream_of_several_prompts_interleaves(tokenizer):
    async def scenario():
        engine = saying("abc")
        async with in_memory(engine, tokenizer) as served:
            events = events_of((await served.complete(prompt=["a", "b"], stream=True)).text)
        order = [event["choices"][0]["index"] for event in events]
        assert order[:4] == [0, 1, 0, 1]

    run(scenario())
