"""What a server understands is found out by asking it, and prompts have the wanted length."""

import asyncio
import time

import pytest

from benchmarks.prompts import WORDS, WordLine
from benchmarks.stream_client import LoadError, StreamClient
from benchmarks.target import Target, connect
from tests.fakes.openai_server import MODEL, Behaviour, FakeServer, running


def connected(
    behaviour: Behaviour, model: str | None = None, endpoint: str = "chat"
) -> tuple[Target, FakeServer, int]:
    """Connect, then send one prompt of 100 tokens; returns the tokens that it had."""

    async def scenario() -> tuple[Target, FakeServer, int]:
        async with running(behaviour) as server:
            target = await connect(StreamClient(server.base_url), model, endpoint)
            prompt = await target.prompt_maker(1).make("p", 100)
            record = await target.stream(prompt, 24, time.perf_counter() + 20)
            assert record.error is None
            return target, server, record.prompt_tokens or -1

    return asyncio.run(scenario())


def test_a_server_like_vllm_gets_every_field() -> None:
    target, server, _ = connected(Behaviour(usage="running", has_tokenize=True))
    assert target.model == MODEL
    assert target.version == "1.2.3"
    assert target.dialect.counts_usage
    assert target.dialect.running_usage
    assert target.dialect.exact_prompts
    assert target.dialect.fixed_length
    body = server.requests[-1][1]
    assert body["ignore_eos"] is True
    assert body["min_tokens"] == body["max_tokens"] == 24
    assert body["stream_options"] == {"include_usage": True}
    assert target.body("x", 5, running_usage=True)["stream_options"] == {
        "include_usage": True,
        "continuous_usage_stats": True,
    }


def test_a_server_like_transformers_serve_gets_what_it_accepts() -> None:
    behaviour = Behaviour(refused=("ignore_eos", "min_tokens"), usage="finish", done=False)
    target, server, _ = connected(behaviour)
    assert target.dialect.fields == ("include_usage",)
    assert target.dialect.counts_usage
    assert not target.dialect.running_usage
    assert "ignore_eos" not in server.requests[-1][1]


def test_a_server_that_knows_no_extension_still_works() -> None:
    behaviour = Behaviour(refused=("ignore_eos", "min_tokens", "stream_options"), usage="none")
    target, server, _ = connected(behaviour)
    assert target.dialect.fields == ()
    assert not target.dialect.counts_usage
    assert target.line == WordLine()
    assert set(server.requests[-1][1]) == {
        "model",
        "stream",
        "temperature",
        "max_tokens",
        "messages",
    }


def test_a_server_that_stops_early_is_said_to() -> None:
    behaviour = Behaviour(refused=("ignore_eos", "min_tokens"), stops_after=4)
    target, _, _ = connected(behaviour)
    assert not target.dialect.fixed_length


@pytest.mark.parametrize("has_tokenize", [True, False], ids=["tokenize", "calibrated"])
@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_prompts_have_the_wanted_length(endpoint: str, has_tokenize: bool) -> None:
    _, server, tokens = connected(Behaviour(has_tokenize=has_tokenize), endpoint=endpoint)
    assert tokens == 100
    assert ("messages" in server.requests[-1][1]) == (endpoint == "chat")


def test_the_named_model_is_used_unasked() -> None:
    target, server, _ = connected(Behaviour(), model="other")
    assert target.model == "other"
    assert {body["model"] for _, body in server.requests} == {"other"}


def test_a_server_that_refuses_everything_cannot_be_measured() -> None:
    with pytest.raises(LoadError, match=r"a plain request .* HTTP 503"):
        connected(Behaviour(status=503))


def test_a_silent_server_cannot_be_measured() -> None:
    with pytest.raises(LoadError, match="does not answer"):
        asyncio.run(connect(StreamClient("http://127.0.0.1:1"), None, "chat"))


def test_prompts_differ_by_name_and_repeat_by_seed() -> None:
    async def scenario() -> list[str]:
        async with running() as server:
            target = await connect(StreamClient(server.base_url), None, "chat")
            maker = target.prompt_maker(7)
            again = target.prompt_maker(7)
            other = target.prompt_maker(8)
            return [
                await maker.make("a", 64),
                await again.make("a", 64),
                await maker.make("b", 64),
                await other.make("a", 64),
            ]

    first, same, by_name, by_seed = asyncio.run(scenario())
    assert first == same
    for other in (by_name, by_seed):
        assert other.split()[:8] != first.split()[:8]  # no shared block for a prefix cache


def test_words_are_distinct() -> None:
    assert len(set(WORDS)) == len(WORDS) > 200
