"""Prefix, buckets and the second names that metrics have for vLLM's dashboards.

Pure data and one renaming view; the series themselves are made in `metrics.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.metrics_core import Metric

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import CollectorRegistry

PREFIX = "atom_lite:"
_VLLM_PREFIX = "vllm:"

TTFT_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
FLUIDITY_BUCKETS = (0.1, 0.25, 0.5, 0.75, 0.8, 0.85, 0.9, 0.95, 0.99, 1.0)
ITL_BUCKETS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0),
)
E2E_BUCKETS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
ITERATION_TOKENS_BUCKETS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
HTTP_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)

# Names of older vLLM versions that dashboards in use still query.
_OLD_ALIASES = {
    "kv_cache_usage_perc": "gpu_cache_usage_perc",
    "inter_token_latency_seconds": "time_per_output_token_seconds",
}


def token_count_buckets(largest: int) -> tuple[int, ...]:
    """The series 1, 2, 5, 10, 20, 50 ... up to `largest`, as vLLM builds it."""
    buckets: list[int] = []
    scale = 1
    while True:
        for step in (1, 2, 5):
            if step * scale > largest:
                return tuple(buckets) or (1,)
            buckets.append(step * scale)
        scale *= 10


class RenamedForVllm:
    """A registry's view that shows each of our series a second time under vLLM's name.

    Only `collect` is needed of a registry to write the page, so this stays a view: values are
    stored once.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        """Every family, then its copies under vLLM's current and old names."""
        for family in self._registry.collect():
            yield family
            if not family.name.startswith(PREFIX):
                continue
            suffix = family.name.removeprefix(PREFIX)
            yield _renamed(family, _VLLM_PREFIX + suffix)
            if suffix in _OLD_ALIASES:
                yield _renamed(family, _VLLM_PREFIX + _OLD_ALIASES[suffix])


def _renamed(family: Metric, name: str) -> Metric:
    copy = Metric(name, family.documentation, family.type)
    copy.samples = [
        sample._replace(name=name + sample.name.removeprefix(family.name))
        for sample in family.samples
    ]
    return copy
