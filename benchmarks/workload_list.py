"""All load shapes by name: those of workloads.py and the traces of open_loop.py."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from benchmarks import open_loop
from benchmarks.workloads import (
    CONCURRENCY_LEVELS,
    CONCURRENCY_REQUESTS,
    LONG_ARRIVALS,
    SHARED_REQUESTS,
    SINGLE_PROMPTS,
    SINGLE_REPEATS,
    Point,
    Run,
    concurrency,
    interference,
    shared_prefix,
    single,
)


@dataclass(frozen=True, slots=True)
class Workload:
    """A load shape by name."""

    drive: Callable[[Run], Awaitable[list[Point]]]
    count: Callable[[Run], int]  # requests that the progress bar will see


WORKLOADS: dict[str, Workload] = {
    "single": Workload(
        single, lambda run: len(run.chosen(SINGLE_PROMPTS)) * run.scaled(SINGLE_REPEATS)
    ),
    "concurrency": Workload(
        concurrency,
        lambda run: len(run.chosen(CONCURRENCY_LEVELS)) * run.scaled(CONCURRENCY_REQUESTS),
    ),
    "interference": Workload(interference, lambda run: run.scaled(LONG_ARRIVALS)),
    "shared-prefix": Workload(shared_prefix, lambda run: max(2, run.scaled(SHARED_REQUESTS))),
} | {
    name: Workload(partial(open_loop.drive, name), lambda run: run.scaled(open_loop.REQUESTS))
    for name in open_loop.TRACES
}
