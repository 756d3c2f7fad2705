"""Log probabilities, token ids and echoes in answers: whole, streamed, and equal."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.fake_engine import FakeEngine, likeliest, logprob_of
from tests.unit.api.serving import (
    DEF,
    EOS,
    GH,
    TURN,
    events_of,
    ids_of,
    in_memory,
    model_config,
    run,
    saying,
)

LISTS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
SMILE = "\N{GRINNING FACE}"


async def whole_choices(served, path: str, **fields: Any) -> list[dict[str, Any]]:
    answer = await getattr(served, path)(**fields)
    assert answer.status_code == 200, answer.text
    choices: list[dict[str, Any]] = answer.json()["choices"]
    return choices


async def streamed_choices(served, path: str, **fields: Any) -> list[dict[str, Any]]:
    """The choices of a stream, put together as a client does."""
    events = events_of((await getattr(served, path)(stream=True, **fields)).text)
    choices: dict[int, dict[str, Any]] = {}
    for event in events:
        for part in event["choices"]:
            choice = choices.setdefault(part["index"], {"text": "", "logprobs": None, "ids": []})
            choice["text"] += part["delta"].get("content", "") if "delta" in part else part["text"]
            choice["ids"] += part.get("token_ids", [])
            _add_logprobs(choice, part["logprobs"])
            choice["finish_reason"] = part["finish_reason"]
    return [choices[index] for index in sorted(choices)]


def _add_logprobs(choice: dict[str, Any], part: dict[str, Any] | None) -> None:
    if part is None:
        return
    if choice["logprobs"] is None:
        choice["logprobs"] = {name: [] for name in part if part[name] is not None}
    for name, items in choice["logprobs"].items():
        items += part[name]
    if "tokens" in part:
        assert len({len(part[name]) for name in LISTS}) == 1


def text_of(choice: dict[str, Any]) -> str:
    text: str = choice["message"]["content"] if "message" in choice else choice["text"]
    return text


def test_chat_logprobs_alone_have_no_alternatives(tokenizer):
    """Field cases 26 and 27."""

    async def scenario():
        async with in_memory(saying("hi"), tokenizer) as served:
            (choice,) = await whole_choices(served, "chat", logprobs=True)
        content = choice["logprobs"]["content"]
        assert [entry["token"] for entry in content] == ["h", "i", "<eos>"]
        assert all(entry["top_logprobs"] == [] for entry in content)
        assert set(choice["logprobs"]) == {"content", "refusal"}

    run(scenario())


def test_numbers_are_the_engine_s_in_both_shapes(tokenizer):
    async def scenario():
        async with in_memory(saying("hi"), tokenizer) as served:
            (text,) = await whole_choices(served, "complete", prompt="abc", logprobs=2)
            (chat,) = await whole_choices(served, "chat", logprobs=True, top_logprobs=2)
            num_chat = len(served.engine.submitted[-1].prompt_token_ids)
        ids = [*ids_of("hi"), EOS]
        lists = text["logprobs"]
        assert lists["token_logprobs"] == [logprob_of(3 + i, each) for i, each in enumerate(ids)]
        assert lists["text_offset"] == [0, 1, 2]
        for place, top in enumerate(lists["top_logprobs"]):
            assert len(top) in (2, 3)
            best = sorted(top.values(), reverse=True)[:2]
            assert best == [logprob_of(3 + place, each) for each in likeliest(3 + place, 2)]
        for place, entry in enumerate(chat["logprobs"]["content"]):
            at = num_chat + place
            assert entry["logprob"] == logprob_of(at, ids[place])
            assert [top["logprob"] for top in entry["top_logprobs"]] == [
                logprob_of(at, each) for each in likeliest(at, 2)
            ]

    run(scenario())


def test_impossible_tokens_have_finite_numbers(tokenizer):
    """Field case 29; id 7 cannot come in the fake engine."""

    async def scenario():
        async with in_memory(FakeEngine(plan=lambda _message: [7]), tokenizer) as served:
            (text,) = await whole_choices(served, "complete", logprobs=9)
            assert text["logprobs"]["token_logprobs"][0] == -9999.0
            assert len(text["logprobs"]["top_logprobs"][0]) == 10
            (chat,) = await whole_choices(served, "chat", logprobs=True, top_logprobs=20)
            assert chat["logprobs"]["content"][0]["logprob"] == -9999.0

    run(scenario())


def test_bytes_are_those_of_each_token(tokenizer):
    """Field case 20."""

    async def scenario():
        async with in_memory(saying(f" {SMILE}"), tokenizer) as served:
            choices = await whole_choices(served, "chat", logprobs=True, max_tokens=5)
            streamed = await streamed_choices(served, "chat", logprobs=True, max_tokens=5)
        content = choices[0]["logprobs"]["content"]
        assert [entry["bytes"] for entry in content] == [[byte] for byte in f" {SMILE}".encode()]
        assert b"".join(bytes(entry["bytes"]) for entry in content).decode() == f" {SMILE}"
        assert streamed[0]["logprobs"]["content"] == content

    run(scenario())


@pytest.mark.parametrize("path", ["chat", "complete"])
@pytest.mark.parametrize(
    ("fields", "text", "ids"),
    [
        ({"stop": ["GH"]}, "ab DEF", [*ids_of("ab "), DEF]),
        ({"stop": ["FGH"]}, "ab DE", [*ids_of("ab "), DEF]),
        ({"stop": ["HI"]}, "ab DEFG", [*ids_of("ab "), DEF, GH]),
        ({"stop": ["a"]}, "", []),
        (
            {"stop": ["GH"], "include_stop_str_in_output": True},
            "ab DEFGH",
            [*ids_of("ab "), DEF, GH],
        ),
        ({"stop": ["nothing"]}, "ab DEFGHIJ", [*ids_of("ab DEFGHIJ"), EOS]),
        ({"stop_token_ids": [GH]}, "ab DEF", [*ids_of("ab "), DEF, GH]),
        ({"max_tokens": 4}, "ab DEF", [*ids_of("ab "), DEF]),
    ],
)
def test_lists_end_with_the_text(tokenizer, path, fields, text, ids):
    """Field case 12: a stop cuts both; EOS or a stop token that ended the output is listed."""

    async def scenario():
        async with in_memory(saying("ab DEFGHIJ"), tokenizer) as served:
            asked = {"logprobs": path == "chat" or 1, "return_token_ids": True} | fields
            (whole,) = await whole_choices(served, path, **asked)
            (streamed,) = await streamed_choices(served, path, **asked)
        assert text_of(whole) == streamed["text"] == text
        assert whole["token_ids"] == streamed["ids"] == ids
        lists = whole["logprobs"]
        assert len(lists["content"] if path == "chat" else lists["tokens"]) == len(ids)
        expected = {name: lists[name] for name in lists if lists[name] is not None}
        assert streamed["logprobs"] == expected

    run(scenario())


def test_lists_count_every_token_of_every_choice(tokenizer):
    """Field case 35."""

    async def scenario():
        async with in_memory(saying(f"x{SMILE}"), tokenizer) as served:
            for path, fields in (
                ("chat", {"logprobs": True, "top_logprobs": 0}),
                ("complete", {"logprobs": 0}),
            ):
                streamed = await streamed_choices(served, path, n=2, **fields)
                for choice in streamed:
                    (length,) = {len(items) for items in choice["logprobs"].values()}
                    assert length == len(ids_of(f"x{SMILE}")) + 1

    run(scenario())


@settings(deadline=None, max_examples=60)
@given(
    text=st.text(f"abDEFGHI {SMILE}é", max_size=14),
    stops=st.lists(st.text(f"abDEFGHI {SMILE}é", min_size=1, max_size=4), max_size=2),
    hidden=st.integers(0, 14),
    options=st.fixed_dictionaries(
        {
            "include_stop_str_in_output": st.booleans(),
            "skip_special_tokens": st.booleans(),
            "stream_interval": st.integers(1, 4),
            "n": st.integers(1, 2),
            "max_tokens": st.integers(1, 20),
        }
    ),
    tokens_per_step=st.integers(1, 4),
    path=st.sampled_from(["chat", "complete"]),
)
def test_streamed_lists_join_to_the_whole_ones(
    tokenizer, text, stops, hidden, options, tokens_per_step, path
):
    ids = ids_of(text)
    ids.insert(min(hidden, len(ids)), TURN)

    async def scenario():
        engine = FakeEngine(plan=lambda _message: ids, tokens_per_step=tokens_per_step)
        async with in_memory(engine, tokenizer) as served:
            fields = {"logprobs": path == "chat" or 3, "return_token_ids": True} | options
            fields |= {"stop": stops} if stops else {}
            fields |= {"top_logprobs": 3} if path == "chat" else {"echo": True}
            whole = await whole_choices(served, path, **fields)
            streamed = await streamed_choices(served, path, **fields)
        for one, other in zip(whole, streamed, strict=True):
            assert other["text"] == text_of(one)
            assert other["ids"] == one["token_ids"]
            assert other["finish_reason"] == one["finish_reason"]
            lists = {name: items for name, items in one["logprobs"].items() if items is not None}
            assert other["logprobs"] == lists
            if path == "complete":
                shown = one["text"]
                assert all(0 <= offset <= len(shown) for offset in lists["text_offset"])
                assert lists["text_offset"] == sorted(lists["text_offset"])

    run(scenario())


# ---------------------------------------------------------------- the prompt


def test_echo_without_output_is_the_prompt_with_its_numbers(tokenizer):
    """Field case 30."""

    async def scenario():
        async with in_memory(saying("unused"), tokenizer) as served:
            answer = await served.complete(
                prompt="hello world", echo=True, max_tokens=0, logprobs=1
            )
            choice = answer.json()["choices"][0]
            (streamed,) = await streamed_choices(
                served, "complete", prompt="hello world", echo=True, max_tokens=0, logprobs=1
            )
        ids, lists = ids_of("hello world"), choice["logprobs"]
        assert choice["text"] == streamed["text"] == "hello world"
        assert choice["finish_reason"] == streamed["finish_reason"] == "length"
        assert answer.json()["usage"]["completion_tokens"] == 0
        assert answer.json()["usage"]["prompt_tokens"] == len(ids)
        assert lists["token_logprobs"] == [
            None,
            *[logprob_of(place, ids[place]) for place in range(1, len(ids))],
        ]
        assert lists["top_logprobs"][0] is None
        assert lists["tokens"] == list("hello world")
        assert lists["text_offset"] == list(range(11))
        assert streamed["logprobs"] == lists

    run(scenario())


@pytest.mark.parametrize("stream", [False, True])
def test_echo_comes_before_each_choice_s_output(tokenizer, stream):
    async def scenario():
        async with in_memory(saying("xy"), tokenizer) as served:
            get = streamed_choices if stream else whole_choices
            fields = {"prompt": [ids_of("aDEF"), ids_of("b")], "n": 2, "echo": True, "logprobs": 2}
            choices = await get(served, "complete", **fields)
            asked = [each.sampling.num_prompt_logprobs for each in served.engine.submitted]
        assert asked == [2, None, 2, None]  # only the first choice of a prompt asks
        assert [choice["text"] for choice in choices] == ["aDEFxy"] * 2 + ["bxy"] * 2
        lists = choices[1]["logprobs"]
        assert lists["tokens"] == ["a", "DEF", "x", "y", "<eos>"]
        assert lists["text_offset"] == [0, 1, 4, 5, 6]
        assert lists["token_logprobs"][:2] == [None, logprob_of(1, DEF)]
        assert choices[0]["logprobs"] == lists

    run(scenario())


def test_a_choice_waits_for_the_numbers_of_its_prompt(tokenizer):
    """The others of a group may have output before the first has told of the prompt."""

    async def scenario():
        engine = saying("xy")
        engine.hold()
        async with in_memory(engine, tokenizer) as served:
            asking = asyncio.create_task(
                streamed_choices(served, "complete", prompt="abcdef", n=2, echo=True, logprobs=0)
            )
            await engine.until(lambda: engine.num_open == 2)
            second = engine._open[2]
            for _ in range(3):
                engine._advance(second)
            for _ in range(20):
                await asyncio.sleep(0)
            engine.release()
            choices = await asking
        assert [choice["text"] for choice in choices] == ["abcdefxy"] * 2
        assert [len(choice["logprobs"]["tokens"]) for choice in choices] == [9, 9]

    run(scenario())


def test_echo_without_logprobs_asks_the_engine_for_none(tokenizer):
    async def scenario():
        async with in_memory(saying("!"), tokenizer) as served:
            (choice,) = await whole_choices(served, "complete", prompt="ab", echo=True)
            (streamed,) = await streamed_choices(served, "complete", prompt="ab", echo=True)
            sampling = served.engine.submitted[0].sampling
        assert (choice["text"], choice["logprobs"]) == ("ab!", None)
        assert (streamed["text"], streamed["logprobs"]) == ("ab!", None)
        assert (sampling.num_logprobs, sampling.num_prompt_logprobs) == (None, None)

    run(scenario())


def test_prompt_logprobs_are_told_by_id(tokenizer):
    async def scenario():
        async with in_memory(saying("!"), tokenizer) as served:
            (text,) = await whole_choices(served, "complete", prompt="abDEF", prompt_logprobs=1)
            chat = (await served.chat(prompt_logprobs=0)).json()
            many = (await served.complete(prompt=["ab", "c"], n=2, prompt_logprobs=0)).json()
            num_chat = len(served.engine.submitted[1].prompt_token_ids)
        ids = ids_of("abDEF")
        assert text["prompt_logprobs"][0] is None
        for place, entry in enumerate(text["prompt_logprobs"][1:], start=1):
            own = entry[str(ids[place])]
            assert own["logprob"] == logprob_of(place, ids[place])
            assert (
                own["decoded_token"]
                == "abDEF"[place : place + 3 if ids[place] == DEF else place + 1]
            )
            assert own["rank"] > 1
            (best,) = likeliest(place, 1)
            assert entry[str(best)]["rank"] == 1
        assert len(chat["prompt_logprobs"]) == num_chat
        assert "prompt_logprobs" not in chat["choices"][0]
        assert [len(choice["prompt_logprobs"]) for choice in many["choices"]] == [2, 2, 1, 1]

    run(scenario())


def test_echo_and_prompt_logprobs_each_show_what_they_asked_for(tokenizer):
    async def scenario():
        async with in_memory(saying("!"), tokenizer) as served:
            fields = {"prompt": "ab", "echo": True, "logprobs": 1, "prompt_logprobs": 4}
            (choice,) = await whole_choices(served, "complete", **fields)
            assert served.engine.submitted[0].sampling.num_prompt_logprobs == 4
        assert len(choice["logprobs"]["top_logprobs"][1]) == 2
        assert len(choice["prompt_logprobs"][1]) == 5

    run(scenario())


def test_token_ids_of_prompt_and_output(tokenizer):
    async def scenario():
        async with in_memory(saying("xDEF"), tokenizer) as served:
            fields = {"return_token_ids": True}
            (text,) = await whole_choices(served, "complete", prompt="ab", **fields)
            chat = (await served.chat(**fields)).json()
            stream = events_of((await served.chat(stream=True, **fields)).text)
            parts = events_of((await served.complete(prompt="ab", stream=True, **fields)).text)
            prompt = served.engine.submitted[1].prompt_token_ids
            plain = (await served.chat()).json()
        ids = [*ids_of("xDEF"), EOS]
        assert (text["token_ids"], text["prompt_token_ids"]) == (ids, ids_of("ab"))
        assert text["logprobs"] is None
        assert (chat["choices"][0]["token_ids"], chat["prompt_token_ids"]) == (ids, prompt)
        assert [event["prompt_token_ids"] for event in stream if "prompt_token_ids" in event] == [
            prompt
        ]
        firsts = [part["choices"][0] for part in parts if "prompt_token_ids" in part["choices"][0]]
        assert [first["prompt_token_ids"] for first in firsts] == [ids_of("ab")]
        assert firsts[0] is parts[0]["choices"][0]
        assert "token_ids" not in plain["choices"][0]
        assert "prompt_token_ids" not in plain

    run(scenario())


def test_tokens_are_named_by_id_on_request(tokenizer):
    async def scenario():
        async with in_memory(saying("DEF"), tokenizer) as served:
            fields = {"return_tokens_as_token_ids": True, "echo": True}
            (text,) = await whole_choices(served, "complete", prompt="a", logprobs=0, **fields)
            (chat,) = await whole_choices(served, "chat", logprobs=True, **fields)
        names = [f"token_id:{each}" for each in (*ids_of("a"), DEF, EOS)]
        assert text["logprobs"]["tokens"] == names
        assert text["text"] == "aDEF"
        assert [each["token"] for each in chat["logprobs"]["content"]] == names[1:]

    run(scenario())


@pytest.mark.parametrize("stream", [False, True])
def test_chat_echo_begins_with_the_message_that_is_continued(tokenizer, stream):
    async def scenario():
        async with in_memory(saying(" more"), tokenizer) as served:
            get = streamed_choices if stream else whole_choices
            messages = [
                {"role": "user", "content": "x"},
                {"role": "assistant", "content": [{"type": "text", "text": "some"}]},
            ]
            fields = {"add_generation_prompt": False, "continue_final_message": True}
            (choice,) = await get(served, "chat", messages=messages, echo=True, **fields)
            assert (choice["text"] if stream else text_of(choice)) == "some more"
            (choice,) = await get(served, "chat", messages=messages, **fields)
            assert (choice["text"] if stream else text_of(choice)) == " more"
            (choice,) = await get(served, "chat", echo=True)  # the last message is the user's
            assert (choice["text"] if stream else text_of(choice)) == " more"

    run(scenario())


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"truncate_prompt_tokens": 3}, "efg"),
        ({"truncate_prompt_tokens": 3, "truncation_side": "left"}, "efg"),
        ({"truncate_prompt_tokens": 3, "truncation_side": "right"}, "abc"),
        ({"truncate_prompt_tokens": 7}, "abcdefg"),
        ({"truncate_prompt_tokens": 200}, "abcdefg"),
        ({"truncate_prompt_tokens": -1}, "abcdefg"),
    ],
)
def test_prompt_is_truncated_at_the_side_that_is_named(tokenizer, fields, kept):
    async def scenario():
        async with in_memory(saying("!"), tokenizer) as served:
            (choice,) = await whole_choices(
                served, "complete", prompt="abcdefg", max_tokens=8, echo=True, **fields
            )
            assert choice["text"] == kept + "!"
            assert served.engine.submitted[0].prompt_token_ids == ids_of(kept)

    run(scenario())


def test_minus_one_keeps_what_the_context_leaves_beside_the_output(tokenizer):
    async def scenario():
        async with in_memory(saying("!"), tokenizer) as served:
            long = "a" * 400  # of a context of 256
            for fields, kept in (({"max_tokens": 56}, 200), ({"max_tokens": None}, 240)):
                answer = await served.complete(prompt=long, truncate_prompt_tokens=-1, **fields)
                assert answer.json()["usage"]["prompt_tokens"] == kept
            messages = [{"role": "user", "content": long}]
            answer = await served.chat(messages=messages, truncate_prompt_tokens=-1)
            assert answer.json()["usage"]["prompt_tokens"] == 255
            assert (await served.complete(prompt=long, max_tokens=56)).status_code == 400
            empty = await served.complete(truncate_prompt_tokens=0)
            assert empty.json()["error"]["param"] == "truncate_prompt_tokens"

    run(scenario())


def counted_threads():
    """Names of the functions that ran on threads, and what stands for `to_thread` to note them."""
    names = []
    to_thread = asyncio.to_thread

    async def counting(function, *args):
        names.append(function.__name__)
        return await to_thread(function, *args)

    return names, counting


def test_long_lists_are_written_beside_the_event_loop(tokenizer, monkeypatch):
    """With the same result."""
    threads, counting = counted_threads()

    async def scenario():
        async with in_memory(saying("xy"), tokenizer) as served:
            fields = {"prompt": "ab" * 100, "echo": True, "logprobs": 20, "max_tokens": 3}
            short = await whole_choices(served, "complete", **(fields | {"prompt": "ab" * 50}))
            monkeypatch.setattr(asyncio, "to_thread", counting)
            (whole,) = await whole_choices(served, "complete", **fields)
            (streamed,) = await streamed_choices(served, "complete", **fields)
        assert threads == ["whole", "opening"]
        assert whole["logprobs"] == streamed["logprobs"]
        assert len(short[0]["logprobs"]["tokens"]) == 103

    run(scenario())


def test_long_lists_of_a_chunk_are_written_beside_the_event_loop(tokenizer, monkeypatch):
    """A whole vocabulary for each token, as `--max-logprobs -1` allows."""
    threads, counting = counted_threads()

    async def scenario():
        engine = saying("xy" * 20, tokens_per_step=20)
        async with in_memory(engine, tokenizer, model_config(max_logprobs=-1)) as served:
            for path, fields in (
                ("complete", {"logprobs": -1}),
                ("chat", {"logprobs": True, "top_logprobs": -1}),
            ):
                (whole,) = await whole_choices(served, path, **fields)
                monkeypatch.setattr(asyncio, "to_thread", counting)
                (streamed,) = await streamed_choices(served, path, **fields)
                monkeypatch.undo()
                assert whole["logprobs"].items() >= streamed["logprobs"].items()
                assert text_of(whole) == streamed["text"]
                assert whole["finish_reason"] == streamed["finish_reason"]
        assert threads == ["written", "written"] * 2  # two steps each

    run(scenario())
