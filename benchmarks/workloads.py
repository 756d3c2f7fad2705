"""The load shapes and how each is driven; returns records, draws no conclusions.

    single         one request at a time, prompts of 128, 1024, 4096 and 7500 tokens
    concurrency    64 requests of ~256 different prompt tokens, with 1, 8 and 32 at once
    interference   8 streams, refilled, while a 6000-token prompt arrives every 3 s, four times
                   (--points: another length)
    poisson, bursty, varying
                   requests at random times, see open_loop.py
    shared-prefix  16 requests, one after the other, on one 3000-token prefix

Each shape yields *points*: sets of requests whose figures are reported together. Everything is
bounded by the run's deadline; what it cuts off is recorded as an error, never dropped.

Runs on the benchmark's event loop. Knows nothing about HTTP or percentiles.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from benchmarks.stream_client import LoadError, RequestRecord
from benchmarks.target import Target

SINGLE_PROMPTS = (128, 1024, 4096, 7500)
SINGLE_REPEATS = 3
CONCURRENCY_LEVELS = (1, 8, 32)
CONCURRENCY_PROMPT = 256
CONCURRENCY_REQUESTS = 64
OUTPUT_TOKENS = 128

STREAMS = 8
STREAM_PROMPT = 64
STREAM_OUTPUT = 256
LONG_PROMPT = 6000
LONG_OUTPUT = 16
LONG_ARRIVALS = 4
LONG_EVERY_SECONDS = 3.0

SHARED_PREFIX = 3000
SHARED_SUFFIX = 64
SHARED_REQUESTS = 16
SHARED_OUTPUT = 32

Progress = Callable[[int], object]  # called with the number of requests that just ended


@dataclass(slots=True, kw_only=True)
class Point:
    """Requests that are reported together.

    Args:
        name: of the row, such as "32 at once".
        records: one for each request; cut-off ones carry an error.
        started: `perf_counter()` of the first request.
        ended: when the last one ended.
        window: count only gaps that end inside these two times; None counts all.
    """

    name: str
    records: list[RequestRecord] = field(default_factory=list)
    started: float = 0.0
    ended: float = 0.0
    window: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One execution of a workload.

    Args:
        target: the server.
        seed: of the prompts.
        deadline: `perf_counter()` time at which everything still open is given up.
        scale: factor on the number of requests (single: of repeats); lengths stay as they are.
        points: keep only these prompt lengths (single) or levels (concurrency); empty keeps all.
        progress: told about each finished request.
    """

    target: Target
    seed: int
    deadline: float
    scale: float = 1.0
    points: tuple[int, ...] = ()
    progress: Progress | None = None

    def scaled(self, count: int) -> int:
        """`count` requests, scaled; at least one."""
        return max(1, round(count * self.scale))

    def chosen(self, points: Iterable[int]) -> list[int]:
        """The wanted ones of a workload's own points.

        Raises:
            LoadError: none is left; the command line prints it.
        """
        own = list(points)
        chosen = [point for point in own if not self.points or point in self.points]
        if not chosen:
            raise LoadError(f"--points {self.points} holds none of this workload's points {own}")
        return chosen

    async def prompts(self, name: str, tokens: int, count: int) -> list[str]:
        """`count` different prompts of `tokens` tokens; made before anything is timed."""
        maker = self.target.prompt_maker(self.seed)
        return [await maker.make(f"{name}/{tokens}/{index}", tokens) for index in range(count)]

    async def send(self, prompt: str, output_tokens: int) -> RequestRecord:
        """One request, counted in the progress bar when it ends."""
        record = await self.target.stream(prompt, output_tokens, self.deadline)
        if self.progress is not None:
            self.progress(1)
        return record


async def single(run: Run) -> list[Point]:
    """One request at a time; TTFT and decode rate by prompt length."""
    points = []
    for tokens in run.chosen(SINGLE_PROMPTS):
        prompts = await run.prompts("single", tokens, run.scaled(SINGLE_REPEATS))
        points.append(await _at_once(run, f"{tokens} prompt tokens", prompts, 1))
    return points


async def concurrency(run: Run) -> list[Point]:
    """A fixed number of requests in flight; throughput and gaps by that number."""
    points = []
    for level in run.chosen(CONCURRENCY_LEVELS):
        count = run.scaled(CONCURRENCY_REQUESTS)
        prompts = await run.prompts(f"concurrency-{level}", CONCURRENCY_PROMPT, count)
        points.append(await _at_once(run, f"{level} at once", prompts, level))
    return points


async def shared_prefix(run: Run) -> list[Point]:
    """The first request computes the prefix; how soon do the others start?"""
    maker = run.target.prompt_maker(run.seed)
    prefix = maker.prefix("shared-prefix", SHARED_PREFIX)
    prompts = [
        await maker.make(f"shared-suffix/{index}", SHARED_SUFFIX, prefix=prefix)
        for index in range(max(2, run.scaled(SHARED_REQUESTS)))
    ]
    first = await _at_once(run, "first", prompts[:1], 1, output_tokens=SHARED_OUTPUT)
    rest = await _at_once(run, "rest", prompts[1:], 1, output_tokens=SHARED_OUTPUT)
    return [first, rest]


async def interference(run: Run) -> list[Point]:
    """Do long prompts stall the streams that run beside them?

    The streams' gaps are reported twice: `streams, before` is the control, from the moment all
    streams run until the first long prompt; `streams, during` lasts from there until the last long
    prompt's first token.
    """
    tokens = run.points[0] if run.points else LONG_PROMPT
    longs = await run.prompts("long", tokens, run.scaled(LONG_ARRIVALS))
    streams = _RefilledStreams(run)
    await streams.start()
    try:
        quiet_since = time.perf_counter()
        await sleep_until(quiet_since + LONG_EVERY_SECONDS, run.deadline)
        first_long = time.perf_counter()
        records = await _staggered(run, longs, first_long)
    finally:
        await streams.stop()
    first_tokens = [record.arrivals[0] if record.arrivals else record.ended for record in records]
    last_first_token = max(first_tokens)
    return [
        streams.point("streams, before", (quiet_since, first_long)),
        streams.point("streams, during", (first_long, last_first_token)),
        Point(
            name=f"{tokens}-token prompts",
            records=records,
            started=first_long,
            ended=max(record.ended for record in records),
        ),
    ]


async def _at_once(
    run: Run, name: str, prompts: list[str], level: int, output_tokens: int = OUTPUT_TOKENS
) -> Point:
    """Send `prompts` with `level` of them in flight at any time."""
    queue = iter(prompts)
    point = Point(name=name, started=time.perf_counter())

    async def worker() -> None:
        for prompt in queue:  # one iterator for all workers: each prompt is taken once
            point.records.append(await run.send(prompt, output_tokens))

    await asyncio.gather(*(worker() for _ in range(level)))
    point.ended = time.perf_counter()
    return point


async def _staggered(run: Run, prompts: list[str], start: float) -> list[RequestRecord]:
    async def at(index: int, prompt: str) -> RequestRecord:
        await sleep_until(start + index * LONG_EVERY_SECONDS, run.deadline)
        return await run.send(prompt, LONG_OUTPUT)

    return await asyncio.gather(*(at(index, prompt) for index, prompt in enumerate(prompts)))


async def sleep_until(moment: float, deadline: float) -> None:
    """Until then, or until the run's deadline."""
    await asyncio.sleep(max(0.0, min(moment, deadline) - time.perf_counter()))


class _RefilledStreams:
    """STREAMS token streams that are replaced as they end, until they are stopped."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._maker = run.target.prompt_maker(run.seed, ask_server=False)
        self._records: list[RequestRecord] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Return when every stream has brought its first token.

        Raises:
            LoadError: one of them ended before, so there is nothing to interfere with.
        """
        ready = [asyncio.Event() for _ in range(STREAMS)]
        self._tasks = [
            asyncio.create_task(self._refill(index, event)) for index, event in enumerate(ready)
        ]
        await asyncio.gather(*(event.wait() for event in ready))
        failed = [record.error for record in self._records if not record.arrivals]
        if failed:
            await self.stop()
            raise LoadError(f"{len(failed)} of {STREAMS} streams did not start: {failed[0]}")

    async def stop(self) -> None:
        """Leave; the server sees its clients disconnect."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def point(self, name: str, window: tuple[float, float]) -> Point:
        """The streams as a point that counts only what happened inside `window`."""
        return Point(
            name=name, records=self._records, started=window[0], ended=window[1], window=window
        )

    async def _refill(self, lane: int, ready: asyncio.Event) -> None:
        """Keep one lane busy; it ends only when cancelled or when a request fails."""
        try:
            for turn in itertools.count():
                prompt = await self._maker.make(f"stream/{lane}/{turn}", STREAM_PROMPT)
                record = RequestRecord()
                self._records.append(record)
                await self._run.target.stream_into(
                    record, prompt, STREAM_OUTPUT, self._run.deadline, ready.set
                )
                if record.error is not None:
                    return
        finally:
            ready.set()
