"""Each load shape sends what its description says."""

import asyncio
import time
from itertools import pairwise

import pytest

from benchmarks import workloads
from benchmarks.stream_client import LoadError, StreamClient
from benchmarks.target import connect
from benchmarks.workload_list import WORKLOADS
from benchmarks.workloads import Point, Run
from tests.fakes.openai_server import Behaviour, FakeServer, running


def drive(
    name: str,
    behaviour: Behaviour | None = None,
    *,
    scale: float = 1.0,
    points: tuple[int, ...] = (),
    seconds: float = 60.0,
) -> tuple[list[Point], FakeServer, list[int]]:
    """Run a workload; also returns what the progress bar heard and the number it was told."""

    async def scenario() -> tuple[list[Point], FakeServer, list[int]]:
        async with running(behaviour) as server:
            target = await connect(StreamClient(server.base_url), None, "chat")
            server.requests.clear()
            server.most_open_streams = 0
            heard: list[int] = []
            run = Run(
                target=target,
                seed=3,
                deadline=time.perf_counter() + seconds,
                scale=scale,
                points=points,
                progress=heard.append,
            )
            found = await WORKLOADS[name].drive(run)
            return found, server, [sum(heard), WORKLOADS[name].count(run)]

    return asyncio.run(scenario())


def prompts(server: FakeServer) -> list[str]:
    return [body["messages"][0]["content"] for _, body in server.requests]


def test_single_sends_one_request_at_a_time() -> None:
    points, server, (heard, told) = drive("single", scale=2 / 3)
    assert [point.name for point in points] == [
        f"{tokens} prompt tokens" for tokens in (128, 1024, 4096, 7500)
    ]
    for point, tokens in zip(points, (128, 1024, 4096, 7500), strict=True):
        assert [record.prompt_tokens for record in point.records] == [tokens] * 2
        assert all(record.output_tokens == 128 for record in point.records)
    assert server.most_open_streams == 1
    assert heard == told == 8
    assert len(set(prompts(server))) == 8


@pytest.mark.parametrize("level", [1, 8, 32])
def test_concurrency_keeps_the_level(level: int) -> None:
    points, server, (heard, told) = drive("concurrency", points=(level,))
    (point,) = points
    assert len(point.records) == 64
    assert server.most_open_streams == level
    assert {record.prompt_tokens for record in point.records} == {256}
    assert len(set(prompts(server))) == 64
    assert heard == told == 64


def test_shared_prefix_shares_the_prefix_and_nothing_else() -> None:
    points, server, (heard, told) = drive("shared-prefix")
    first, rest = points
    assert (len(first.records), len(rest.records)) == (1, 15)
    assert heard == told == 16
    shared = prompts(server)[0].split()[:3000]
    assert all(text.split()[:3000] == shared for text in prompts(server))
    tails = {" ".join(text.split()[3000:3010]) for text in prompts(server)}
    assert len(tails) == 16


def test_interference_sends_long_prompts_into_running_streams(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workloads, "LONG_EVERY_SECONDS", 0.1)
    points, server, (heard, told) = drive("interference")
    before, during, longs = points
    assert heard == told == 4
    assert [record.prompt_tokens for record in longs.records] == [6000] * 4
    starts = sorted(record.started for record in longs.records)
    assert all(after - early >= 0.09 for early, after in pairwise(starts))
    assert before.window is not None
    assert during.window is not None
    assert before.window[1] == during.window[0] <= starts[0]
    assert before.records is during.records
    assert len(before.records) >= workloads.STREAMS
    assert server.most_open_streams >= workloads.STREAMS


def test_interference_needs_streams_to_interfere_with() -> None:
    with pytest.raises(LoadError, match="8 of 8 streams did not start: timed out"):
        # the probe asks for 16 tokens and calibration for 1: only the streams hang
        drive("interference", Behaviour(silent_above=100), seconds=1.0)


def test_the_deadline_ends_a_workload_and_keeps_its_records() -> None:
    points, _, _ = drive(
        "concurrency", Behaviour(hang_after=20), scale=1 / 16, points=(8,), seconds=0.5
    )
    assert [record.error for record in points[0].records] == ["timed out"] * 4


def test_unknown_points_are_refused_with_the_known_ones() -> None:
    with pytest.raises(LoadError, match=r"\(7,\).*\[1, 8, 32\]"):
        drive("concurrency", points=(7,))
