"""The streaming client reads every dialect of token stream, and records every failure."""

import asyncio
import time

import pytest

from benchmarks.stream_client import LoadError, RequestRecord, StreamClient
from tests.fakes.openai_server import Behaviour, FakeServer, running

CHAT = "/v1/chat/completions"


def body(max_tokens: int = 8, **extra: object) -> dict[str, object]:
    return {
        "model": "fake-model",
        "messages": [{"role": "user", "content": "one two three"}],
        "max_tokens": max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    } | extra


def record_of(behaviour: Behaviour, seconds: float = 20.0, **extra: object) -> RequestRecord:
    async def scenario() -> RequestRecord:
        async with running(behaviour) as server:
            client = StreamClient(server.base_url)
            return await client.stream(CHAT, body(**extra), time.perf_counter() + seconds)

    return asyncio.run(scenario())


@pytest.mark.parametrize(
    "behaviour",
    [
        Behaviour(),
        Behaviour(chunked=False),
        Behaviour(newline="\r\n"),
        Behaviour(usage="finish", done=False),
        Behaviour(usage="running"),
    ],
    ids=["usage at the end", "ends with connection", "crlf", "usage in finish chunk", "running"],
)
def test_every_token_is_counted_and_timed(behaviour: Behaviour) -> None:
    record = record_of(behaviour)
    assert record.error is None
    assert record.finish_reason == "length"
    assert record.output_tokens == 8
    assert record.prompt_tokens == 3 + 7
    assert record.cached_tokens == 3
    assert record.num_chunks == 8
    assert record.started < record.arrivals[0] <= record.arrivals[-1] <= record.ended
    assert record.arrivals == sorted(record.arrivals)


def test_usage_counts_tokens_that_share_a_chunk() -> None:
    record = record_of(Behaviour(tokens_per_chunk=3))
    assert record.output_tokens == 8
    assert record.num_chunks == 3
    assert len(record.arrivals) <= 3


def test_chunks_stand_for_tokens_where_the_server_sends_no_usage() -> None:
    record = record_of(Behaviour(usage="none"))
    assert record.usage is None
    assert record.output_tokens == 8


def test_running_usage_is_recognised() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    record = record_of(Behaviour(usage="running"), stream_options=options)
    assert record.num_usages == 8 + 2
    assert record.num_chunks == 8
    assert record.output_tokens == 8


def test_the_role_chunk_is_not_the_first_token() -> None:
    record = record_of(Behaviour(hang_after=0), seconds=0.2)
    assert record.arrivals == []
    assert record.error == "timed out"


def test_a_hanging_stream_ends_at_the_deadline_with_what_came() -> None:
    before = time.perf_counter()
    record = record_of(Behaviour(hang_after=3), seconds=0.3)
    assert record.error == "timed out"
    assert record.num_chunks == 3
    assert time.perf_counter() - before < 10


def test_a_broken_connection_is_an_error() -> None:
    record = record_of(Behaviour(break_after=3))
    assert record.error == "stream ended after 3 chunks without a finish_reason"


def test_an_error_event_is_an_error() -> None:
    record = record_of(Behaviour(error_after=2))
    assert record.error is not None
    assert "the engine died" in record.error


def test_a_refusal_carries_status_and_body() -> None:
    record = record_of(Behaviour(status=503))
    assert record.status == 503
    assert record.error is not None
    assert record.error.startswith("HTTP 503")
    assert "overloaded" in record.error


def test_a_closed_port_is_an_error() -> None:
    async def scenario() -> RequestRecord:
        async with running() as server:
            base_url = server.base_url
        return await StreamClient(base_url).stream(CHAT, body(), time.perf_counter() + 5)

    record = asyncio.run(scenario())
    assert record.error is not None
    assert record.error.startswith("cannot connect")


def test_cancelling_leaves_a_usable_record_and_closes_the_connection() -> None:
    async def scenario() -> tuple[RequestRecord, FakeServer]:
        async with running(Behaviour(hang_after=2)) as server:
            client, record, first = StreamClient(server.base_url), RequestRecord(), asyncio.Event()
            deadline = time.perf_counter() + 20
            stream = client.stream(CHAT, body(), deadline, record=record, on_first_token=first.set)
            task = asyncio.create_task(stream)
            await first.wait()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return record, server

    record, _ = asyncio.run(scenario())
    assert record.arrivals
    assert record.ended >= record.arrivals[-1]
    assert record.error is None
    assert record.finish_reason is None


def test_key_and_path_prefix_are_sent() -> None:
    async def scenario() -> FakeServer:
        async with running() as server:
            client = StreamClient(server.base_url + "/v1/", api_key="secret")
            await client.stream(CHAT, body(), time.perf_counter() + 20)
            return server

    server = asyncio.run(scenario())
    assert server.requests[0][0] == CHAT
    assert "Authorization: Bearer secret" in server.headers[0]


@pytest.mark.parametrize("base_url", ["127.0.0.1:8000", "ftp://host", "http://", ""])
def test_a_base_url_that_is_none_is_refused_with_its_value(base_url: str) -> None:
    with pytest.raises(LoadError, match="--base-url"):
        StreamClient(base_url)
