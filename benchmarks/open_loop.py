"""Requests at random times, whatever the server does: the traces of `atom_lite.simulation.traces`.

Most prompts are short and some long, so that each trace asks what a long prompt costs those
beside it. The burst of `varying` asks for more than a small machine can serve at once, its quiet
phases for little. Runs on the benchmark's event loop.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from atom_lite.simulation import traces
from atom_lite.simulation.workloads import uniform
from benchmarks.workloads import Point, Run, sleep_until

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from atom_lite.simulation.workloads import Request
    from benchmarks.stream_client import RequestRecord

REQUESTS = 40
RATE = 1.0  # requests per second
QUIET_RATE = 0.5
MIX = traces.Mix(
    short=uniform(64, 256), long=uniform(1024, 2048), long_share=0.15, output=uniform(16, 64)
)
Trace = tuple["Callable[[Sequence[Request], float, int], list[Request]]", float]
TRACES: dict[str, Trace] = {
    "poisson": (traces.poisson, RATE),
    "bursty": (traces.bursty, RATE),
    "varying": (traces.varying, QUIET_RATE),
}


def planned(name: str, count: int, seed: int) -> list[Request]:
    """The requests of a trace, in order of arrival."""
    arrive, rate = TRACES[name]
    return arrive(traces.draw_mix(count, MIX, seed), rate, seed)


async def drive(name: str, run: Run) -> list[Point]:
    """Send a trace's requests at their times."""
    requests = planned(name, run.scaled(REQUESTS), run.seed)
    maker = run.target.prompt_maker(run.seed)
    prompts = [
        await maker.make(f"{name}/{index}", request.prompt_tokens)
        for index, request in enumerate(requests)
    ]
    start = time.perf_counter()

    async def send(prompt: str, request: Request) -> RequestRecord:
        await sleep_until(start + request.arrival_seconds, run.deadline)
        return await run.send(prompt, request.output_tokens)

    pairs = zip(prompts, requests, strict=True)
    records = await asyncio.gather(*(send(prompt, request) for prompt, request in pairs))
    ended = max(record.ended for record in records)
    return [Point(name=f"{name} requests", records=records, started=start, ended=ended)]
