"""Requests judged by their objectives: goodput, and fluidity in both of Etalon's definitions.

    goodput   requests per second whose TTFT and mean gap (TPOT) both met their objective
    fluidity  of one request: the share of its tokens on time, slack of early ones carried
              (`atom_lite/scheduler/fluidity.py`); a request is fluid from 0.9 on

Failed requests meet nothing and are not fluid, so that a server cannot look good by refusing.
Inside a window a stream counts with what happened there. Pure; no I/O.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atom_lite.scheduler.fluidity import fluidity_docs, fluidity_paper
from atom_lite.simulation.service_levels import LEAST_FLUIDITY
from benchmarks.figures import Levels, began_inside, gaps_of, touches, tpot_of

if TYPE_CHECKING:
    from benchmarks.stream_client import RequestRecord
    from benchmarks.workloads import Point


@dataclass(frozen=True, slots=True, kw_only=True)
class Objectives:
    """What every request is promised, in seconds.

    Attributes:
        tbt_seconds: between two tokens.
        ttft_seconds: from sending to the first token.
        ttft_seconds_per_token: on top of it for each prompt token, where the server counts them.
    """

    tbt_seconds: float
    ttft_seconds: float
    ttft_seconds_per_token: float = 0.0

    def first_seconds(self, record: RequestRecord) -> float:
        """What the first token of a request may take."""
        return self.ttft_seconds + self.ttft_seconds_per_token * (record.prompt_tokens or 0)


def levels_of(point: Point, objectives: Objectives) -> Levels | None:
    """A point by these objectives; None where no request touches it."""
    records = [record for record in point.records if touches(record, point.window)]
    if not records:
        return None
    docs, paper, num_good = [], [], 0
    late, gaps = 0, 0
    for record in records:
        failed = not record.arrivals or (record.error is not None and point.window is None)
        first = objectives.first_seconds(record)
        waited = _gaps_with_ttft(record, point, first)
        kept = {"first_seconds": first, "next_seconds": objectives.tbt_seconds}
        docs.append(0.0 if failed else fluidity_docs(waited, **kept))
        paper.append(0.0 if failed else fluidity_paper(waited, **kept))
        num_good += not failed and _is_good(record, objectives)
        gaps += len(waited) - 1
        late += sum(gap > objectives.tbt_seconds for gap in waited[1:])
    wall = point.ended - point.started
    return Levels(
        goodput_per_second=num_good / wall if wall > 0 else 0.0,
        fluidity_docs=statistics.fmean(docs),
        fluidity_paper=statistics.fmean(paper),
        fluid_share_docs=sum(share >= LEAST_FLUIDITY for share in docs) / len(docs),
        fluid_share_paper=sum(share >= LEAST_FLUIDITY for share in paper) / len(paper),
        late_gap_share=late / gaps if gaps else 0.0,
    )


def _gaps_with_ttft(record: RequestRecord, point: Point, first_seconds: float) -> list[float]:
    """TTFT, then the gaps; a stream that began before the window is taken to have begun in time."""
    ttft = first_seconds
    if began_inside(record, point.window):
        ttft = record.arrivals[0] - record.started
    return [ttft, *gaps_of(record, point.window)]


def _is_good(record: RequestRecord, objectives: Objectives) -> bool:
    tpot = tpot_of(record)
    in_time = record.arrivals[0] - record.started <= objectives.first_seconds(record)
    return in_time and (tpot is None or tpot <= objectives.tbt_seconds)
