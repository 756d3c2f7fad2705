"""How a simulated run did by its objectives: goodput, and the share of fluid requests.

Why: a policy may have the better percentile of gaps and serve fewer requests within what they were
promised. Runs in simulations only; pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atom_lite.scheduler.fluidity import fluidity_docs, fluidity_paper
from atom_lite.simulation.measure import measure

if TYPE_CHECKING:
    from atom_lite.simulation.measure import RunRecord, SequenceRecord

LEAST_FLUIDITY = 0.9  # of a request that counts as fluid; Etalon's number


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLevels:
    """Of all requests of a run, refused ones included.

    Attributes:
        goodput_per_second: requests whose TTFT and mean gap (TPOT) both met their objective.
        fluid_share_docs: requests with fluidity of at least 0.9, late tokens counted once.
        fluid_share_paper: the same, late tokens counted for each deadline that they missed.
        fluidity_docs: mean over the requests.
        fluidity_paper: likewise.
    """

    goodput_per_second: float
    fluid_share_docs: float
    fluid_share_paper: float
    fluidity_docs: float
    fluidity_paper: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """The objectives of every request, in seconds.

    Attributes:
        ttft_seconds: from arrival to the first token.
        tbt_seconds: between two tokens.
        prefill_seconds: of a prompt of so many tokens alone; its first token may take as much more.
    """

    ttft_seconds: float
    tbt_seconds: float
    prefill_seconds: Callable[[int], float] = lambda _tokens: 0.0

    def first_seconds(self, record: SequenceRecord) -> float:
        """What the first token of a request may take."""
        return self.ttft_seconds + self.prefill_seconds(record.prompt_tokens)


def service_levels(run: RunRecord, promise: Promise) -> ServiceLevels:
    """The run by what every request was promised."""
    duration = measure(run).duration_seconds
    num_good = sum(_is_good(record, promise) for record in run.sequences)
    shares, means = [], []
    for fluidity in (fluidity_docs, fluidity_paper):
        kept = [
            fluidity(
                _gaps(record),
                first_seconds=promise.first_seconds(record),
                next_seconds=promise.tbt_seconds,
            )
            if record.token_seconds
            else 0.0
            for record in run.sequences
        ]
        num_fluid = sum(one >= LEAST_FLUIDITY for one in kept)
        shares.append(num_fluid / len(kept) if kept else 1.0)
        means.append(math.fsum(kept) / len(kept) if kept else 1.0)
    return ServiceLevels(
        goodput_per_second=num_good / duration if duration > 0.0 else 0.0,
        fluid_share_docs=shares[0],
        fluid_share_paper=shares[1],
        fluidity_docs=means[0],
        fluidity_paper=means[1],
    )


def _is_good(record: SequenceRecord, promise: Promise) -> bool:
    tpot = record.tpot_seconds
    in_time = record.ttft_seconds <= promise.first_seconds(record)
    return in_time and (tpot is None or tpot <= promise.tbt_seconds)


def _gaps(record: SequenceRecord) -> list[float]:
    """TTFT, then the gaps."""
    return [record.ttft_seconds, *record.gaps_seconds]
