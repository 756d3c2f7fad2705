"""Several choices of one prompt, and the best of several."""

from __future__ import annotations

import asyncio

import pytest

from atom_lite.api.sampling import seed_of_choice
from tests.fakes.fake_engine import FakeEngine
from tests.unit.api.serving import events_of, ids_of, in_memory, joined, run, saying


def numbering() -> FakeEngine:
    """An engine whose sequences say their prompt and their place in their group."""

    def plan(message):
        place = message.sequence_id - (message.group or message.sequence_id)
        return [*message.prompt_token_ids, *ids_of(str(place) * (place + 1))]

    return FakeEngine(plan=plan)


@pytest.mark.parametrize("stream", [False, True])
def test_choices_are_numbered_prompt_by_prompt(tokenizer, stream):
    async def scenario():
        async with in_memory(numbering(), tokenizer) as served:
            options = {"stream_options": {"include_usage": True}} if stream else {}
            answer = await served.complete(prompt=["a", "bc"], n=3, stream=stream, **options)
            expected = ["a0", "a11", "a222", "bc0", "bc11", "bc222"]
            if stream:
                events = events_of(answer.text)
                assert [joined(events, index) for index in range(6)] == expected
                ends = [
                    choice["index"]
                    for event in events
                    for choice in event["choices"]
                    if choice["finish_reason"]
                ]
                assert sorted(ends) == list(range(6))
                usage = events[-1]["usage"]
            else:
                choices = answer.json()["choices"]
                assert [choice["index"] for choice in choices] == list(range(6))
                assert [choice["text"] for choice in choices] == expected
                usage = answer.json()["usage"]
            assert usage["prompt_tokens"] == 3  # each prompt once
            assert usage["completion_tokens"] == sum(len(text) + 1 for text in expected)
            assert usage["total_tokens"] == 3 + usage["completion_tokens"]

    run(scenario())


def test_chat_streams_a_role_and_an_end_for_each_choice(tokenizer):
    async def scenario():
        async with in_memory(numbering(), tokenizer) as served:
            whole = (await served.chat(n=2)).json()
            texts = [choice["message"]["content"] for choice in whole["choices"]]
            events = events_of((await served.chat(n=2, stream=True)).text)
            for index in range(2):
                mine = [
                    event["choices"][0] for event in events if event["choices"][0]["index"] == index
                ]
                assert mine[0]["delta"] == {"role": "assistant", "content": ""}
                assert [choice["finish_reason"] for choice in mine[-2:]] == [None, "stop"]
                assert (
                    "".join(choice["delta"].get("content", "") for choice in mine) == (texts[index])
                )

    run(scenario())


def test_choices_of_a_prompt_share_its_kv_and_differ_in_seed(tokenizer):
    async def scenario():
        engine = saying("x")
        async with in_memory(engine, tokenizer) as served:
            await served.complete(prompt=["a", "b"], n=2, seed=9, temperature=1)
            await served.complete(prompt="a", seed=9)
        first, *_, alone = engine.submitted
        groups = [message.group for message in engine.submitted]
        assert groups == [1, 1, 3, 3, None]
        seeds = [message.sampling.seed for message in engine.submitted]
        assert seeds == [9, seed_of_choice(9, 1), 9, seed_of_choice(9, 1), 9]
        assert first.sampling.seed == alone.sampling.seed

    run(scenario())


def test_choices_without_a_seed_get_different_ones_again_after_a_restart(tokenizer):
    async def seeds():
        engine = saying("x")
        async with in_memory(engine, tokenizer) as served:
            await served.chat(n=3)
        return [message.sampling.seed for message in engine.submitted]

    async def scenario():
        first, again = await seeds(), await seeds()
        assert first == again
        assert len(set(first)) == 3

    run(scenario())


def test_greedy_choices_are_taken_and_equal(tokenizer):
    async def scenario():
        async with in_memory(saying("same"), tokenizer) as served:
            choices = (await served.chat(n=3, temperature=0)).json()["choices"]
        assert [choice["message"]["content"] for choice in choices] == ["same"] * 3

    run(scenario())


def test_leaving_ends_every_choice(tokenizer):
    """Field case 50."""

    async def scenario():
        engine = saying("y" * 50)
        engine.hold()
        async with in_memory(engine, tokenizer) as served:
            asking = asyncio.create_task(served.chat(n=4, stream=True))
            await engine.until(lambda: engine.num_open == 4)
            served.app.state.frontend.abort_all()
            await asking
            assert engine.num_open == 0
            assert sorted(engine.aborted) == [(number, "abort") for number in range(1, 5)]

    run(scenario())


def test_a_stop_ends_its_choice_once_and_the_others_go_on(tokenizer):
    async def scenario():
        async with in_memory(numbering(), tokenizer) as served:
            answer = await served.complete(prompt="a", n=3, stop="11", stream=True)
        choices = [event["choices"][0] for event in events_of(answer.text)]
        ends = [choice for choice in choices if choice["finish_reason"]]
        assert sorted((end["index"], end["stop_reason"]) for end in ends) == [
            (0, None),
            (1, "11"),
            (2, None),
        ]

    run(scenario())


def test_cached_tokens_are_those_of_a_prompt_s_first_choice(tokenizer):
    async def scenario():
        engine = saying("x")
        async with in_memory(engine, tokenizer) as served:
            engine.num_cached_tokens = 16
            usage = (await served.complete(prompt=["a" * 20, "b" * 20], n=3)).json()["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == 32
        assert usage["prompt_tokens"] == 40

    run(scenario())


def test_best_of_shows_the_likeliest_and_counts_all(tokenizer):
    """In the fake engine lower ids are likelier, and later places less likely."""
    texts = ["zz", "aa", "mm", "bb"]

    async def scenario():
        engine = FakeEngine(plan=lambda message: ids_of(texts[message.sequence_id - message.group]))
        async with in_memory(engine, tokenizer) as served:
            body = (await served.complete(prompt=["x", "y"], n=2, best_of=4)).json()
            assert [choice["text"] for choice in body["choices"]] == ["aa", "bb", "aa", "bb"]
            assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
            assert body["choices"][0]["logprobs"] is None
            assert body["usage"]["completion_tokens"] == 8 * 3
            assert body["usage"]["prompt_tokens"] == 2
            chat = (await served.chat(best_of=4)).json()
            assert [each["message"]["content"] for each in chat["choices"]] == ["aa"]
            told = (await served.complete(n=1, best_of=4, logprobs=1)).json()["choices"][0]
            assert told["logprobs"]["tokens"] == ["a", "a", "<eos>"]

    run(scenario())


def test_best_of_as_many_as_are_shown_may_be_streamed(tokenizer):
    async def scenario():
        async with in_memory(saying("x"), tokenizer) as served:
            for n in (1, 2):
                answer = await served.complete(n=n, best_of=n, stream=True)
                assert joined(events_of(answer.text), n - 1) == "x"

    run(scenario())


def test_the_n_of_a_request_is_counted_once_for_each_prompt(tokenizer):
    async def scenario():
        async with in_memory(saying("x"), tokenizer) as served:
            await served.complete(prompt=["a", "b"], n=3)
            assert served.metric("request_params_n_count") == 2
            assert served.metric("request_params_n_sum") == 6

    run(scenario())
