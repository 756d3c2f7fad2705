"""Gauges and totals that the engine owns, read from its latest snapshot at scrape time.

The engine counts; the frontend only keeps the last snapshot, so totals cannot drift apart and an
idle engine's heartbeat brings the gauges to rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from atom_lite.messages import EngineStats
from atom_lite.observability.chunking_families import chunking_families
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
    "static_budget_steps": (
        "static_budget_steps",
        "Steps that policy slo sized by a static budget, for want of a latency model to trust.",
    ),
}
_STAGE_COUNTERS = {
    "stage_busy_seconds": ("stage_busy_seconds", "Time in the model call of a pipeline stage."),
    "stage_bubble_seconds": (
        "stage_bubble_seconds",
        "Time in which steps were in flight and a pipeline stage was not busy.",
    ),
}


class EngineCollector(Collector):
    """Turns the `stats` of the moment into metric families.

    Args:
        labels: the labels that every series carries.
        num_stages: of the pipeline.
    """

    def __init__(self, labels: dict[str, str], num_stages: int) -> None:
        self.stats = EngineStats()
        self._labels = labels
        self._num_stages = num_stages
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
        for suffix, (field, text) in _STAGE_COUNTERS.items():
            yield self._by_stage(PREFIX + suffix, text, getattr(stats, field))
        yield from chunking_families(stats.chunking, self._labels, self._num_stages)

    def _by_stage(self, name: str, text: str, seconds: list[float]) -> Metric:
        family = CounterMetricFamily(name, text, labels=[*self._names, "stage"])
        for stage in range(self._num_stages):
            known = seconds[stage] if stage < len(seconds) else 0.0
            family.add_metric([*self._values, str(stage)], known)
        return family
