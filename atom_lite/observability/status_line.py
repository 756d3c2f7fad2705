"""The line that says every 10 seconds how the engine does, as vLLM prints it.

Runs in the frontend process, as one asyncio task, from the engine's latest snapshot. It is silent
while nothing happens, so an idle server does not fill a disk. `--disable-log-stats` leaves the task
out; that is the launcher's decision.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from atom_lite.messages import EngineStats

STATUS_INTERVAL_SECONDS = 10.0

logger = logging.getLogger(__name__)


class HasStats(Protocol):
    """Anything that knows the engine's latest snapshot."""

    @property
    def stats(self) -> EngineStats:
        """The latest snapshot."""
        ...


def status_line(before: EngineStats, after: EngineStats, seconds: float) -> str | None:
    """What happened between two snapshots, or None when nothing did.

    Prompt throughput counts computed tokens: what the prefix cache saved is in the hit rate.

    Args:
        before: snapshot at the start of the interval.
        after: snapshot at its end.
        seconds: length of the interval.
    """
    prompt_tokens = after.prompt_tokens_computed - before.prompt_tokens_computed
    output_tokens = after.output_tokens - before.output_tokens
    if not (prompt_tokens or output_tokens or after.num_running or after.num_waiting):
        return None
    parts = [
        f"Avg prompt throughput: {prompt_tokens / seconds:.1f} tokens/s",
        f"Avg generation throughput: {output_tokens / seconds:.1f} tokens/s",
        f"Running: {after.num_running} reqs",
        f"Waiting: {after.num_waiting} reqs",
    ]
    if preemptions := after.num_preemptions - before.num_preemptions:
        parts.append(f"Preemptions: {preemptions}")
    hit_rate = after.prefix_cache_hits / max(1, after.prefix_cache_queries)
    parts.append(f"KV cache usage: {after.kv_usage:.1%}")
    parts.append(f"Prefix cache hit rate: {hit_rate:.1%}")
    return ", ".join(parts)


async def run_status_line(
    engine: HasStats, interval_seconds: float = STATUS_INTERVAL_SECONDS
) -> None:
    """Log a status line per interval while there is work; runs until cancelled."""
    before, since = engine.stats, time.monotonic()
    while True:
        await asyncio.sleep(interval_seconds)
        after, now = engine.stats, time.monotonic()
        line = status_line(before, after, now - since)
        if line is not None:
            logger.info("%s", line)
        before, since = after, now
