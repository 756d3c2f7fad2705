"""What chunk sizes were given and why: the periodic log line and the numbers for /metrics.

Pure; runs in the head process, beside the engine's status line.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from atom_lite.messages import CHUNK_SIZE_BUCKETS_TOKENS

if TYPE_CHECKING:
    from atom_lite.chunking.planner import ChunkDecision, Reason

# In the order of ATOM's line; the last three appear only when they happened.
_PHRASES: dict[Reason, str] = {
    "model": "{} chunks sized by the model",
    "sweep": "{} by the calibration sweep",
    "unreachable": "{} kept fixed because no equal-latency chunk was reachable",
    "other_prefills": "{} kept fixed because other prefills were present",
    "whole_prompt": "{} kept fixed because the prefill must go in one forward",
    "fixed": "{} kept fixed because no model is installed",
    "schedule": "{} sized by the static schedule",
    "deadline": "{} sized by the objectives of running streams",
}
_ALWAYS: tuple[Reason, ...] = ("model", "sweep", "unreachable", "other_prefills")


class ChunkReport:
    """Counts decisions; an interval for the log, totals for metrics."""

    def __init__(self) -> None:
        self._interval: Counter[Reason] = Counter()
        self.total_by_reason: Counter[Reason] = Counter()
        self.tokens_by_reason: Counter[Reason] = Counter()
        self._sizes: Counter[tuple[Reason, int]] = Counter()

    def count(self, decision: ChunkDecision) -> None:
        """Note a chunk that was placed."""
        self._interval[decision.reason] += 1
        self.total_by_reason[decision.reason] += 1
        self.tokens_by_reason[decision.reason] += decision.tokens
        bucket = next((b for b in CHUNK_SIZE_BUCKETS_TOKENS if decision.tokens <= b), 0)
        self._sizes[decision.reason, bucket] += 1

    def size_buckets(self, reason: Reason) -> list[int]:
        """Chunks per bucket of `CHUNK_SIZE_BUCKETS_TOKENS`, those above the last one at the end."""
        return [self._sizes[reason, bucket] for bucket in (*CHUNK_SIZE_BUCKETS_TOKENS, 0)]

    def line(self) -> str | None:
        """The line for the log, and a new interval; None where nothing was chunked."""
        interval, self._interval = self._interval, Counter()
        if not interval:
            return None
        parts = [
            phrase.format(interval[reason])
            for reason, phrase in _PHRASES.items()
            if reason in _ALWAYS or interval[reason]
        ]
        return "Dynamic chunking since last report: " + ", ".join(parts)
