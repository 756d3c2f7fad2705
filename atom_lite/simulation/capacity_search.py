"""How many requests a second a policy serves as promised: a bisection of the arrival rate.

    fluid   99 % of the requests have fluidity of at least 0.9 (Etalon; paper definition)
    tail    the 99th percentile of all gaps keeps the objective, and the median request waits no
            longer than 2 s for its prefill (Sarathi-Serve)

The same requests come at every rate, only faster or slower, so that a higher rate is never easier
by its draw. Runs in simulations only.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atom_lite.errors import ConfigError
from atom_lite.simulation.batching import run_batching
from atom_lite.simulation.measure import measure
from atom_lite.simulation.service_levels import Promise, service_levels
from atom_lite.simulation.traces import poisson

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from atom_lite.simulation.batching import BatchingSpec, Server
    from atom_lite.simulation.measure import RunRecord
    from atom_lite.simulation.workloads import Request

    Keeps = Callable[[RunRecord, Promise], bool]

FLUID_SHARE = 0.99
MOST_WAIT_SECONDS = 2.0
RATE_STEP = 2.0  # between the rates that bracket the answer
MOST_BRACKETS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What was found.

    Attributes:
        requests_per_second: the highest rate that was served; 0 where the lowest was not.
        num_runs: how many rates were tried.
    """

    requests_per_second: float
    num_runs: int


def fluid(run: RunRecord, promise: Promise) -> bool:
    """Etalon's criterion."""
    return service_levels(run, promise).fluid_share_paper >= FLUID_SHARE


def tail(run: RunRecord, promise: Promise) -> bool:
    """Sarathi-Serve's criterion."""
    figures = measure(run)
    waits = [
        record.ttft_seconds - promise.prefill_seconds(record.prompt_tokens)
        for record in run.sequences
    ]
    in_time = statistics.median(waits) <= MOST_WAIT_SECONDS
    return in_time and figures.itl_seconds.p99 <= promise.tbt_seconds


def bisect_rate(
    is_served: Callable[[float], bool], start: float, *, precision: float = 0.03
) -> Capacity:
    """The highest rate that is served, to within `precision` of it.

    Args:
        is_served: asked for each rate; taken to be true below some rate and false above.
        start: where to begin, above 0.
        precision: relative.

    Raises:
        ConfigError: a start or a precision that means nothing.
    """
    if not (0.0 < start < math.inf and 0.0 < precision < 1.0):
        raise ConfigError(f"cannot search a rate from {start} to a precision of {precision}")
    num_runs = 1
    served = is_served(start)
    low, high = (start, start * RATE_STEP) if served else (start / RATE_STEP, start)
    for _ in range(MOST_BRACKETS):  # until `low` is served and `high` is not
        num_runs += 1
        if is_served(high if served else low) is not served:
            break
        low, high = (high, high * RATE_STEP) if served else (low / RATE_STEP, low)
    else:
        return Capacity(requests_per_second=low if served else 0.0, num_runs=num_runs)
    while high / low - 1.0 > precision:
        num_runs += 1
        middle = math.sqrt(low * high)
        low, high = (middle, high) if is_served(middle) else (low, middle)
    return Capacity(requests_per_second=low, num_runs=num_runs)


def find_capacity(
    server: Server,
    spec: BatchingSpec,
    requests: Sequence[Request],
    promise: Promise,
    *,
    keeps: Keeps | None = None,
    start: float = 1.0,
    seed: int = 0,
) -> Capacity:
    """The capacity of one policy for these requests at Poisson arrivals.

    Args:
        server: the machine.
        spec: the policy.
        requests: without their times.
        promise: what each is promised.
        keeps: whether a run counts as served; `fluid` by default.
        start: a rate to begin with.
        seed: of the arrivals.
    """
    judge = keeps or fluid

    def is_served(rate: float) -> bool:
        arriving = poisson(requests, rate, seed)
        run = run_batching(server, spec, arriving, tbt_seconds=promise.tbt_seconds)
        return judge(run, promise)

    return bisect_rate(is_served, start)
