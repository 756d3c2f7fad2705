"""The frontend's end of the link, against the engine's real end in the same process."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from atom_lite.errors import ConfigError, EngineError
from atom_lite.ipc.link import SocketLink
from atom_lite.ipc.remote_engine import RemoteEngine
from atom_lite.messages import (
    AbortSequence,
    EngineEvents,
    EngineFailed,
    EngineStats,
    FrontendMessage,
    SamplingParams,
    SequenceFinished,
    SequenceTimings,
    SubmitSequence,
    TokensGenerated,
)
from tests.fakes.fake_engine import engine_ready

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

TIMINGS = SequenceTimings(
    arrival_time=0.0, first_scheduled_time=None, first_token_time=None, finish_time=1.0
)


def submit(sequence_id: int) -> SubmitSequence:
    return SubmitSequence(
        sequence_id=sequence_id,
        prompt_token_ids=[1],
        sampling=SamplingParams(max_tokens=4),
        arrival_time=0.0,
    )


def frame(*events: Any) -> EngineEvents:
    return EngineEvents(events=list(events), stats=EngineStats())


@dataclass
class Pair:
    engine: RemoteEngine
    link: SocketLink
    hung_up: bool = False

    def hang_up(self) -> None:
        if not self.hung_up:
            self.link.close()
        self.hung_up = True

    async def receive(self) -> list[FrontendMessage]:
        return await asyncio.to_thread(self.link.receive, 10)


@asynccontextmanager
async def pair(**settings: Any) -> AsyncIterator[Pair]:
    engine = RemoteEngine(**settings)
    lifeline, other_end = os.pipe()
    link = SocketLink(engine.requests_address, engine.events_address, lifeline)
    link.send(engine_ready())
    await engine.wait_ready()
    both = Pair(engine, link)
    yield both
    await engine.close()
    both.hang_up()
    os.close(lifeline)
    os.close(other_end)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 30))


def test_a_stream_is_its_events_and_then_the_end() -> None:
    async def scenario() -> None:
        async with pair() as both:
            events: list[Any] = []

            async def read() -> None:
                events.extend([event async for event in both.engine.stream(submit(1))])

            reading = asyncio.create_task(read())
            assert await both.receive() == [submit(1)]
            both.link.send(frame(TokensGenerated(sequence_id=1, token_ids=[5])))
            end = SequenceFinished(
                sequence_id=1,
                reason="stop",
                timings=TIMINGS,
                num_prompt_tokens=1,
                num_output_tokens=1,
            )
            both.link.send(frame(TokensGenerated(sequence_id=99, token_ids=[6]), end))
            await reading
            assert [type(event).__name__ for event in events] == [
                "TokensGenerated",
                "SequenceFinished",
            ]

    run(scenario())


def test_a_stream_that_is_left_aborts_its_sequence() -> None:
    async def scenario() -> None:
        async with pair() as both:
            stream = both.engine.stream(submit(1))
            waiting = asyncio.create_task(anext(stream))
            assert await both.receive() == [submit(1)]
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert await both.receive() == [AbortSequence(sequence_id=1)]

    run(scenario())


def test_a_silent_engine_does_not_respond_until_it_speaks_again() -> None:
    async def scenario() -> None:
        async with pair(silence_limit_seconds=0.2) as both:
            assert both.engine.responding
            while both.engine.responding:
                await asyncio.sleep(0)
            assert both.engine.alive
            both.link.send(frame())
            while not both.engine.responding:
                await asyncio.sleep(0)

    run(scenario())


def test_an_engine_counts_as_hung_only_while_it_says_nothing() -> None:
    async def scenario() -> None:
        async with pair(silence_limit_seconds=0.6) as both:
            hung = asyncio.create_task(both.engine.wait_hung())
            for _ in range(45):
                both.link.send(frame())
                await asyncio.wait({hung}, timeout=0.02)
            assert not hung.done()
            await asyncio.wait_for(hung, 60)
            assert both.engine.alive  # whether that is the end is for its user to say

    run(scenario())


def test_a_vanished_engine_is_an_engine_error_even_before_anybody_says_so() -> None:
    async def scenario() -> None:
        async with pair() as both:
            both.hang_up()
            # The socket learns of it on its own thread: until then messages go into the void.
            for sequence_id in range(1, 10_000):
                try:
                    async with asyncio.timeout(0.01):
                        await anext(both.engine.stream(submit(sequence_id)))
                except TimeoutError:
                    continue
                except EngineError as error:
                    assert "gone" in str(error)
                    break
            else:
                raise AssertionError("the loss of the engine was never noticed")
            both.engine.abort(1)
            both.engine.reset_prefix_cache()
            both.engine.shut_down()

    run(scenario())


def test_a_reader_that_breaks_fails_the_engine(caplog: pytest.LogCaptureFixture) -> None:
    def broken(_frame: EngineEvents) -> None:
        raise ZeroDivisionError

    async def scenario() -> None:
        async with pair() as both:
            both.engine.on_frame = broken
            reading = asyncio.create_task(anext(both.engine.stream(submit(1))))
            await both.receive()
            both.link.send(frame())
            with pytest.raises(EngineError, match="ZeroDivisionError"):
                await reading
            await both.engine.wait_failed()
            assert not both.engine.alive

    run(scenario())
    assert "the link to the engine broke" in caplog.text


def test_a_failed_engine_ends_open_streams_and_refuses_new_ones() -> None:
    async def scenario() -> None:
        async with pair() as both:
            reading = asyncio.create_task(anext(both.engine.stream(submit(1))))
            await both.receive()
            both.link.send(EngineFailed(message="out of memory"))
            both.link.send(engine_ready())  # late words change nothing
            with pytest.raises(EngineError, match="out of memory"):
                await reading
            await both.engine.wait_failed()
            with pytest.raises(EngineError, match="out of memory"):
                await anext(both.engine.stream(submit(2)))

    run(scenario())


def test_a_place_for_sockets_that_cannot_be_used_is_the_operators_fault(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    deep = tmp_path / ("x" * 120)
    deep.mkdir()

    async def scenario() -> None:
        for directory in (deep, tmp_path / "missing"):
            monkeypatch.setattr("tempfile.tempdir", str(directory))
            with pytest.raises(ConfigError, match="socket"):
                RemoteEngine()

    run(scenario())


def test_a_stream_that_is_open_when_the_link_closes_ends_with_an_error() -> None:
    async def check() -> None:
        async with pair() as both:
            stream = both.engine.stream(submit(1))
            waiting = asyncio.ensure_future(anext(stream))
            assert len(await both.receive()) == 1
        with pytest.raises(EngineError, match="shut down"):
            await waiting

    asyncio.run(check())
