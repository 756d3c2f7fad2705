"""The chunk-size policy and its calibration as metric families.

Every reason, state, stage and coefficient is there from the start, at zero. Runs in the frontend
process, for each scrape; it must not import the engine's side, so the words that label the series
are listed here and a test compares them with the engine's.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)

from atom_lite.messages import CHUNK_SIZE_BUCKETS_TOKENS, ChunkingStats
from atom_lite.observability.metric_names import PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric

CHUNK_REASONS = (
    "model",
    "sweep",
    "unreachable",
    "other_prefills",
    "whole_prompt",
    "fixed",
    "deadline",
    "schedule",
)
CALIBRATION_STATES = (
    "off",
    "profiling",
    "calibrating",
    "collecting",
    "installed",
    "drifting",
    "ignored",
    "gave_up",
)
COEFFICIENTS = (
    "constant_seconds",
    "prefix_seconds_per_token",
    "linear_seconds_per_token",
    "attention_seconds_per_area",
    "decode_row_seconds",
    "decode_context_seconds_per_token",
)
_BOUNDS = (*(str(float(bound)) for bound in CHUNK_SIZE_BUCKETS_TOKENS), "+Inf")
_NOTHING = ChunkingStats(policy="", num_stages=0, state="off", reason="", chunks_by_reason={})


def chunking_families(
    chunking: ChunkingStats | None, labels: dict[str, str], num_stages: int
) -> Iterator[Metric]:
    """All families.

    Args:
        chunking: the engine's last snapshot; None before the first.
        labels: the labels that every series carries.
        num_stages: of the pipeline.
    """
    known = chunking or _NOTHING
    yield _counts(known, labels)
    yield _sizes(known, labels)
    yield _state(known, labels)
    error = GaugeMetricFamily(
        PREFIX + "chunk_prediction_error",
        "Median relative error of the last step times predicted; 0 before any.",
        labels=list(labels),
    )
    error.add_metric(list(labels.values()), known.prediction_error or 0.0)
    yield error
    yield _fit_error(known, labels, num_stages)
    yield _coefficients(known, labels, num_stages)


def _counts(chunking: ChunkingStats, labels: dict[str, str]) -> Metric:
    family = CounterMetricFamily(
        PREFIX + "dynamic_chunks",
        "Prefill chunks placed, by what decided their size.",
        labels=[*labels, "reason"],
    )
    for reason in CHUNK_REASONS:
        family.add_metric([*labels.values(), reason], chunking.chunks_by_reason.get(reason, 0))
    return family


def _sizes(chunking: ChunkingStats, labels: dict[str, str]) -> Metric:
    family = HistogramMetricFamily(
        PREFIX + "dynamic_chunk_tokens",
        "Tokens of the prefill chunks placed, by what decided their size.",
        labels=[*labels, "reason"],
    )
    empty = [0] * len(_BOUNDS)
    for reason in CHUNK_REASONS:
        counts = accumulate(chunking.chunk_sizes_by_reason.get(reason, empty))
        family.add_metric(
            [*labels.values(), reason],
            buckets=[(bound, float(count)) for bound, count in zip(_BOUNDS, counts, strict=True)],
            sum_value=chunking.chunk_tokens_by_reason.get(reason, 0),
        )
    return family


def _state(chunking: ChunkingStats, labels: dict[str, str]) -> Metric:
    family = GaugeMetricFamily(
        PREFIX + "calibration_state",
        "1 for the state that the latency model's calibration is in.",
        labels=[*labels, "state"],
    )
    for state in CALIBRATION_STATES:
        family.add_metric([*labels.values(), state], float(state == chunking.state))
    return family


def _fit_error(chunking: ChunkingStats, labels: dict[str, str], num_stages: int) -> Metric:
    family = GaugeMetricFamily(
        PREFIX + "latency_model_fit_error",
        "Median relative error that the installed model was accepted with; 0 without a model.",
        labels=[*labels, "stage"],
    )
    for stage in range(num_stages):
        known = chunking.fit_errors[stage] if stage < len(chunking.fit_errors) else None
        family.add_metric([*labels.values(), str(stage)], known or 0.0)
    return family


def _coefficients(chunking: ChunkingStats, labels: dict[str, str], num_stages: int) -> Metric:
    family = GaugeMetricFamily(
        PREFIX + "latency_model_coefficient",
        "Terms of the installed latency model; the unit is in each name, 0 without a model.",
        labels=[*labels, "stage", "coefficient"],
    )
    for stage in range(num_stages):
        model = chunking.coefficients[stage] if stage < len(chunking.coefficients) else {}
        for name in COEFFICIENTS:
            family.add_metric([*labels.values(), str(stage), name], model.get(name, 0.0))
    return family
