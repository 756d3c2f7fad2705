"""Traces of the scheduling scenarios: a mix of short and long prompts, and when they come.

    poisson    a steady rate, independent arrivals
    bursty     the same rate, arrivals in clusters (gamma, coefficient of variation 3)
    varying    quiet, burst, quiet: a rate that no static setting is right for

The simulator and the load client (`benchmarks/open_loop.py`) run the same traces. Pure and seeded.
"""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atom_lite.errors import ConfigError
from atom_lite.simulation.workloads import Lengths, OpenLoop, Request, with_arrivals

if TYPE_CHECKING:
    from collections.abc import Sequence

BURSTY_VARIATION = 3.0
QUIET_SHARE = 0.3  # of the requests, in both quiet phases together
BURST_FACTOR = 4.0  # the burst's rate, in quiet ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """What prompts a trace holds.

    Attributes:
        short: lengths of most prompts.
        long: lengths of the others.
        long_share: how many those are.
        output: tokens generated for each.
    """

    short: Lengths
    long: Lengths
    long_share: float
    output: Lengths

    def __post_init__(self) -> None:
        if not 0.0 <= self.long_share <= 1.0:
            raise ConfigError(f"the share of long prompts is {self.long_share}, must be 0 to 1")


def draw_mix(count: int, mix: Mix, seed: int) -> list[Request]:
    """So many requests of a mix, without their times; long ones are spread evenly."""
    rng = random.Random(seed)
    requests = []
    owed = rng.random()
    for _ in range(count):
        owed += mix.long_share
        is_long = owed >= 1.0
        owed -= is_long
        length = mix.long if is_long else mix.short
        requests.append(Request(prompt_tokens=length(rng), output_tokens=mix.output(rng)))
    return requests


def poisson(requests: Sequence[Request], rate_per_second: float, seed: int) -> list[Request]:
    """Independent arrivals."""
    return _all(with_arrivals(requests, rate_per_second, seed))


def bursty(requests: Sequence[Request], rate_per_second: float, seed: int) -> list[Request]:
    """Arrivals in clusters."""
    return _all(with_arrivals(requests, rate_per_second, seed, variation=BURSTY_VARIATION))


def varying(requests: Sequence[Request], quiet_rate: float, seed: int) -> list[Request]:
    """Quiet, a burst of four times that rate, quiet; `quiet_rate` is per second."""
    num_quiet = round(len(requests) * QUIET_SHARE / 2)
    cuts = (
        (requests[:num_quiet], quiet_rate),
        (requests[num_quiet : len(requests) - num_quiet], BURST_FACTOR * quiet_rate),
        (requests[len(requests) - num_quiet :], quiet_rate),
    )
    arriving: list[Request] = []
    begin = 0.0
    for index, (part, rate) in enumerate(cuts):
        for request in poisson(part, rate, seed + index):
            at = begin + request.arrival_seconds
            arriving.append(dataclasses.replace(request, arrival_seconds=at))
        if arriving:
            begin = arriving[-1].arrival_seconds + 1.0 / rate
    return arriving


def _all(loop: OpenLoop) -> list[Request]:
    return loop.take_due(float("inf"))
