"""Which prompts arrive when: single ones, open and closed loops, shared prefixes. All seeded.

    OpenLoop     each request comes at its own time, whatever the server does (Poisson, bursts)
    ClosedLoop   so many at once: one ends, the next comes

Token ids carry no text: prompts differ from their first token on, unless they share a prefix. Runs
in simulations only.
"""

from __future__ import annotations

import dataclasses
import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from atom_lite.errors import ConfigError
from atom_lite.messages import SamplingParams, SubmitSequence

if TYPE_CHECKING:
    from collections.abc import Sequence

_OWN_TOKEN = 1_000_000  # plus the sequence's id: a token that no other prompt has
_PREFIX_TOKEN = 1000  # plus the prefix's number

Lengths: TypeAlias = Callable[[random.Random], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt to come.

    Attributes:
        prompt_tokens: its length, a shared prefix included.
        output_tokens: how many are generated.
        arrival_seconds: when, in an open loop.
        prefix: which shared prefix it starts with; None for none.
        prefix_tokens: how long that is.
    """

    prompt_tokens: int
    output_tokens: int = 1
    arrival_seconds: float = 0.0
    prefix: int | None = None
    prefix_tokens: int = 0

    def submission(self, sequence_id: int, now: float) -> SubmitSequence:
        """What the frontend would send."""
        shared = 0 if self.prefix is None else min(self.prefix_tokens, self.prompt_tokens)
        own = self.prompt_tokens - shared
        token_ids = [_PREFIX_TOKEN + (self.prefix or 0)] * shared
        return SubmitSequence(
            sequence_id=sequence_id,
            prompt_token_ids=token_ids + [_OWN_TOKEN + sequence_id] * own,
            sampling=SamplingParams(max_tokens=self.output_tokens, ignore_eos=True),
            arrival_time=now,
        )


class Workload(Protocol):
    """What the simulator knows of its clients."""

    @property
    def next_arrival_seconds(self) -> float | None:
        """When the next request comes, as far as is known now."""
        ...

    def take_due(self, now: float) -> list[Request]:
        """Requests that have come by now."""
        ...

    def finished(self, now: float) -> None:
        """A request has got its last token."""
        ...


class OpenLoop:
    """Requests at their own times."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self._coming = [(r.arrival_seconds, index, r) for index, r in enumerate(requests)]
        heapq.heapify(self._coming)

    @property
    def next_arrival_seconds(self) -> float | None:
        """See Workload."""
        return self._coming[0][0] if self._coming else None

    def take_due(self, now: float) -> list[Request]:
        """See Workload."""
        due = []
        while self._coming and self._coming[0][0] <= now:
            due.append(heapq.heappop(self._coming)[2])
        return due

    def finished(self, now: float) -> None:
        """Nobody waits for it."""


class ClosedLoop:
    """A fixed number of requests at once, until all have been served."""

    def __init__(self, requests: Sequence[Request], concurrency: int) -> None:
        """Raises ConfigError for a concurrency under 1."""
        if concurrency < 1:
            raise ConfigError(f"the concurrency is {concurrency}, must be at least 1")
        self._waiting = deque(requests)
        self._room = concurrency
        self._room_since = 0.0

    @property
    def next_arrival_seconds(self) -> float | None:
        """See Workload."""
        return self._room_since if self._waiting and self._room > 0 else None

    def take_due(self, now: float) -> list[Request]:
        """See Workload."""
        due = []
        while self._waiting and self._room > 0:
            due.append(dataclasses.replace(self._waiting.popleft(), arrival_seconds=now))
            self._room -= 1
        return due

    def finished(self, now: float) -> None:
        """Its client sends the next one at once."""
        self._room += 1
        self._room_since = now


def single(prompt_tokens: int, output_tokens: int = 1) -> OpenLoop:
    """One prompt, alone."""
    return OpenLoop([Request(prompt_tokens=prompt_tokens, output_tokens=output_tokens)])


# ---------------------------------------------------------------- lengths


def constant(tokens: int) -> Lengths:
    """Always the same."""
    return lambda _rng: tokens


def uniform(least: int, most: int) -> Lengths:
    """Any length of the range, ends included, alike."""
    if not 1 <= least <= most:
        raise ConfigError(f"lengths from {least} to {most} tokens: must rise and be at least 1")
    return lambda rng: rng.randint(least, most)


def log_normal(median: int, sigma: float, *, most: int) -> Lengths:
    """Many short ones and a long tail, cut off at `most`; sigma is of the logarithm."""
    return lambda rng: max(1, min(most, round(median * rng.lognormvariate(0.0, sigma))))


def draw_requests(
    count: int,
    seed: int,
    prompt: Lengths,
    output: Lengths,
    *,
    num_prefixes: int = 0,
    prefix_tokens: int = 0,
) -> list[Request]:
    """Requests of random length; with `num_prefixes` each starts with one of so many prefixes."""
    rng = random.Random(seed)
    requests = []
    for _ in range(count):
        length = prompt(rng)
        requests.append(
            Request(
                prompt_tokens=length,
                output_tokens=output(rng),
                prefix=rng.randrange(num_prefixes) if num_prefixes else None,
                prefix_tokens=prefix_tokens,
            )
        )
    return requests


def with_arrivals(
    requests: Sequence[Request], rate_per_second: float, seed: int, *, variation: float = 1.0
) -> OpenLoop:
    """The requests at random times.

    Args:
        requests: in order of arrival.
        rate_per_second: on average.
        seed: of the gaps between arrivals.
        variation: coefficient of variation of the gaps: 1 is a Poisson process, more comes in
            bursts (gamma), 0 is a metronome.

    Raises:
        ConfigError: a rate or a variation that means nothing.
    """
    if not rate_per_second > 0.0:
        raise ConfigError(f"the arrival rate is {rate_per_second}, must be above 0 per second")
    if not 0.0 <= variation < float("inf"):
        raise ConfigError(f"the arrivals' variation is {variation}, must be at least 0 and finite")
    rng = random.Random(seed)
    now = 0.0
    arriving = []
    for request in requests:
        arriving.append(dataclasses.replace(request, arrival_seconds=now))
        mean = 1.0 / rate_per_second
        if variation > 0.0:
            shape = 1.0 / (variation * variation)
            now += rng.gammavariate(shape, mean / shape)
        else:
            now += mean
    return OpenLoop(arriving)
