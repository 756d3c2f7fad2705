from __future__ import annotations

import asyncio
import logging

from atom_lite.messages import EngineStats
from atom_lite.observability.status_line import run_status_line, status_line


def test_line_tells_rates_queue_and_cache():
    before = EngineStats(prompt_tokens_computed=100, output_tokens=10)
    after = EngineStats(
        num_running=3,
        num_waiting=1,
        kv_usage=0.256,
        prompt_tokens_computed=1100,
        output_tokens=260,
        prefix_cache_queries=200,
        prefix_cache_hits=50,
    )
    assert status_line(before, after, 10.0) == (
        "Avg prompt throughput: 100.0 tokens/s, Avg generation throughput: 25.0 tokens/s, "
        "Running: 3 reqs, Waiting: 1 reqs, KV cache usage: 25.6%, Prefix cache hit rate: 25.0%"
    )


def test_preemptions_are_told_when_there_were_some():
    line = status_line(EngineStats(), EngineStats(num_preemptions=2, num_running=1), 10.0)
    assert line is not None
    assert "Preemptions: 2, " in line


def test_nothing_is_said_while_nothing_happens():
    after_work = EngineStats(prompt_tokens_computed=100, output_tokens=10)
    assert status_line(after_work, after_work, 10.0) is None
    assert status_line(EngineStats(), after_work, 10.0) is not None
    assert status_line(after_work, EngineStats(num_waiting=1), 10.0) is not None


class _Engine:
    """Gives another snapshot each time it is asked, then stops the loop."""

    def __init__(self, snapshots):
        self._snapshots = iter(snapshots)
        self.exhausted = asyncio.Event()

    @property
    def stats(self):
        snapshot = next(self._snapshots, None)
        if snapshot is None:
            self.exhausted.set()
            return EngineStats()
        return snapshot


def test_task_logs_one_line_per_interval_with_work(caplog):
    async def scenario():
        engine = _Engine(
            [
                EngineStats(),
                EngineStats(),
                EngineStats(output_tokens=5),
                EngineStats(output_tokens=5),
            ]
        )
        task = asyncio.create_task(run_status_line(engine, interval_seconds=0.001))
        await engine.exhausted.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    with caplog.at_level(logging.INFO, "atom_lite.observability.status_line"):
        asyncio.run(scenario())
    lines = [record.getMessage() for record in caplog.records]
    assert sum("Running: 0 reqs" in line for line in lines) >= 1
    assert len(lines) <= 2
