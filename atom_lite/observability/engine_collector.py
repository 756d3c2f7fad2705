"""Gauges and totals that the engine owns, read from its latest snapshot at scrape time.

The engine counts; the frontend only keeps the last snapshot, so totals cannot drift apart and an
idle engine's heartbeat brings the gauges to rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from atom_lite.messages import ChunkingStats, EngineStats
from atom_lite.observability.metric_names import PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric

_GAUGES = {
    "num_requests_running": ("num_running", "Sequences that are running."),
    "num_requests_waiting": ("num_waiting", "Sequences that wait to be scheduled."),
    "kv_cache_usage_perc": ("kv_usage", "Share of KV blocks in use, 0 to 1."),
}
_COUNTERS = {
    "prefix_cache_queries": ("prefix_cache_queries", "Prompt tokens looked up in the cache."),
    "prefix_cache_hits": ("prefix_cache_hits", "Prompt tokens found in the cache."),
    "num_preemptions": ("num_preemptions", "Preempted sequences."),
    "engine_steps": ("num_steps", "Steps run."),
    "prompt_tokens_computed": ("prompt_tokens_computed", "Prompt tokens run through the model."),
    "deadline_overruns": ("deadline_overruns", "Steps that knowingly missed their deadline."),
}
_CHUNK_REASONS = (
    "model",
    "sweep",
    "unreachable",
    "other_prefills",
    "whole_prompt",
    "fixed",
    "schedule",
)
_CALIBRATION_STATES = (
    "off",
    "profiling",
    "calibrating",
    "collecting",
    "installed",
    "drifting",
    "ignored",
    "gave_up",
)


class EngineCollector(Collector):
    """Turns the `stats` of the moment into metric families.

    Args:
        labels: the labels that every series carries.
    """

    def __init__(self, labels: dict[str, str]) -> None:
        self.stats = EngineStats()
        self._names = list(labels)
        self._values = list(labels.values())

    def rest(self) -> None:
        """Bring the gauges to zero and keep the totals: the engine is gone and holds nothing."""
        self.stats = msgspec.structs.replace(self.stats, num_running=0, num_waiting=0, kv_usage=0.0)

    def collect(self) -> Iterator[Metric]:
        """The families; called by the registry for each scrape."""
        stats = self.stats
        for suffix, (field, text) in _GAUGES.items():
            gauge = GaugeMetricFamily(PREFIX + suffix, text, labels=self._names)
            gauge.add_metric(self._values, getattr(stats, field))
            yield gauge
        for suffix, (field, text) in _COUNTERS.items():
            name = PREFIX + suffix
            counter = CounterMetricFamily(name, text, labels=self._names)
            counter.add_metric(self._values, getattr(stats, field))
            yield counter
        yield from self._chunking(stats.chunking)

    def _chunking(self, chunking: ChunkingStats | None) -> Iterator[Metric]:
        """The chunk-size policy; every reason and state is there from the start, at zero."""
        chunks = CounterMetricFamily(
            PREFIX + "dynamic_chunks",
            "Prefill chunks placed, by what decided their size.",
            labels=[*self._names, "reason"],
        )
        counts = {} if chunking is None else chunking.chunks_by_reason
        for reason in _CHUNK_REASONS:
            chunks.add_metric([*self._values, reason], counts.get(reason, 0))
        yield chunks
        states = GaugeMetricFamily(
            PREFIX + "calibration_state",
            "1 for the state that the latency model's calibration is in.",
            labels=[*self._names, "state"],
        )
        current = "off" if chunking is None else chunking.state
        for state in _CALIBRATION_STATES:
            states.add_metric([*self._values, state], float(state == current))
        yield states
        error = GaugeMetricFamily(
            PREFIX + "chunk_prediction_error",
            "Median relative error of the last step times predicted; 0 before any.",
            labels=self._names,
        )
        known = None if chunking is None else chunking.prediction_error
        error.add_metric(self._values, known or 0.0)
        yield error
