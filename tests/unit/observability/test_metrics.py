from __future__ import annotations

import re
from dataclasses import fields
from typing import get_args

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from atom_lite.chunking.atom_calibrator import AtomState
from atom_lite.chunking.calibrator import CalibrationState
from atom_lite.chunking.latency_model import LatencyModel
from atom_lite.chunking.planner import Reason
from atom_lite.config import Config, ObservabilityConfig, SchedulerConfig
from atom_lite.config_scheduling import Objectives
from atom_lite.messages import (
    CHUNK_SIZE_BUCKETS_TOKENS,
    ChunkingStats,
    EngineEvents,
    EngineStats,
    SequenceFinished,
    SequenceTimings,
)
from atom_lite.observability.chunking_families import (
    CALIBRATION_STATES,
    CHUNK_REASONS,
    COEFFICIENTS,
)
from atom_lite.observability.metric_names import token_count_buckets
from atom_lite.observability.metrics import FINISHED_REASONS, Metrics
from tests.fakes.fake_engine import engine_ready

LABELS = {"model_name": "m", "engine": "0"}
# What dashboards and gateways of vLLM query, by suffix.
SERIES = [
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "num_preemptions_total",
    "prompt_tokens_total",
    "prompt_tokens_cached_total",
    "generation_tokens_total",
    "deadline_overruns_total",
    *(
        f"{name}_count"
        for name in (
            "time_to_first_token_seconds",
            "inter_token_latency_seconds",
            "request_time_per_output_token_seconds",
            "e2e_request_latency_seconds",
            "request_queue_time_seconds",
            "request_inference_time_seconds",
            "request_prefill_time_seconds",
            "request_decode_time_seconds",
            "request_prompt_tokens",
            "request_generation_tokens",
            "request_max_num_generation_tokens",
            "request_params_max_tokens",
            "request_prefill_kv_computed_tokens",
            "iteration_tokens_total",
            "request_params_n",
            "request_num_preemptions",
        )
    ),
]


def make(compat: str | None = None, num_stages: int = 1) -> Metrics:
    config = Config(observability=ObservabilityConfig(metrics_compat=compat))
    return Metrics(config, engine_ready(num_stages=num_stages), "m")


def samples_of(metrics: Metrics) -> dict[tuple[str, frozenset], float]:
    page, _ = metrics.exposition("")
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


def value(metrics: Metrics, suffix: str, **labels: str) -> float:
    found = samples_of(metrics).get((f"atom_lite:{suffix}", frozenset((LABELS | labels).items())))
    assert found is not None, suffix
    return found


def finished(**changes: object) -> SequenceFinished:
    values = {
        "sequence_id": 1,
        "reason": "stop",
        "timings": SequenceTimings(
            arrival_time=100.0,
            first_scheduled_time=101.0,
            first_token_time=103.0,
            finish_time=107.0,
        ),
        "num_prompt_tokens": 10,
        "num_output_tokens": 5,
        "num_cached_tokens": 4,
    }
    return SequenceFinished(**(values | changes))


def test_every_series_exists_at_zero_from_the_start():
    found = samples_of(make())
    for suffix in SERIES:
        assert found[f"atom_lite:{suffix}", frozenset(LABELS.items())] == 0
    for reason in FINISHED_REASONS:
        labels = frozenset((LABELS | {"finished_reason": reason}).items())
        assert found["atom_lite:request_success_total", labels] == 0
    names = {name for name, _ in found}
    assert {"process_resident_memory_bytes", "python_info"} <= names
    (info,) = [dict(labels) for name, labels in found if name == "atom_lite:cache_config_info"]
    assert (info["block_size"], info["num_gpu_blocks"]) == ("16", "64")


def test_page_has_no_vllm_names_unless_asked():
    assert not any(name.startswith("vllm:") for name, _ in samples_of(make()))


def test_compat_shows_every_series_also_under_vllms_names_old_and_new():
    metrics = make("vllm")
    metrics.observe_engine(EngineEvents(events=[], stats=EngineStats(kv_usage=0.25)))
    metrics.start_sequence(num_prompt_tokens=1, max_tokens=5, arrival_time=0).tokens(3, 0, 1.0)
    found = samples_of(metrics)
    ours = {name.removeprefix("atom_lite:") for name, _ in found if name.startswith("atom_lite:")}
    theirs = {name.removeprefix("vllm:") for name, _ in found if name.startswith("vllm:")}
    aliases = {"gpu_cache_usage_perc"} | {
        f"time_per_output_token_seconds_{part}" for part in ("bucket", "count", "sum")
    }
    assert theirs == ours | aliases
    labels = frozenset(LABELS.items())
    assert found["vllm:gpu_cache_usage_perc", labels] == 0.25
    assert found["vllm:generation_tokens_total", labels] == 3
    assert found["vllm:time_per_output_token_seconds_count", labels] == 2


@pytest.mark.parametrize("compat", [None, "vllm"])
def test_page_is_valid_openmetrics_too(compat):
    page, content_type = make(compat).exposition("application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert list(parse_openmetrics(page.decode()))


@pytest.mark.parametrize(
    "accept",
    [
        "text/plain;version=1.0.0",
        "application/openmetrics-text",
        "application/openmetrics-text;version=1.0.0;q=0.5",
        "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6",
    ],
)
def test_names_are_the_same_in_every_format(accept):
    """Dashboards ask for `atom_lite:x`, whatever format Prometheus was given."""
    page, _ = make().exposition(accept)
    names = {re.match(r"[^{ ]+", line)[0] for line in page.decode().splitlines() if line[0] != "#"}
    assert {name for name, _ in samples_of(make())} == names


def test_gauges_follow_the_engine_and_come_to_rest():
    metrics = make()
    busy = EngineStats(num_running=3, num_waiting=2, kv_usage=0.5, num_preemptions=1)
    metrics.observe_engine(EngineEvents(events=[], stats=busy, step_tokens=[7, 600]))
    assert value(metrics, "num_requests_running") == 3
    assert value(metrics, "num_requests_waiting") == 2
    assert value(metrics, "kv_cache_usage_perc") == 0.5
    assert value(metrics, "iteration_tokens_total_sum") == 607
    assert value(metrics, "iteration_tokens_total_bucket", le="8.0") == 1
    idle = EngineStats(num_preemptions=1)
    metrics.observe_engine(EngineEvents(events=[], stats=idle))
    assert value(metrics, "num_requests_running") == value(metrics, "num_requests_waiting") == 0
    assert value(metrics, "kv_cache_usage_perc") == 0
    assert value(metrics, "num_preemptions_total") == 1


def test_a_sequence_counts_once_everywhere():
    metrics = make()
    record = metrics.start_sequence(num_prompt_tokens=10, max_tokens=8, arrival_time=100.0)
    record.tokens(1, 4, 103.0)
    record.tokens(2, 4, 104.0)
    record.tokens(2, 4, 107.0)
    record.finish("stop", 5, 107.5)
    record.finish("abort", 5, 109.0)
    record.phases(finished())
    assert value(metrics, "time_to_first_token_seconds_sum") == 3
    assert value(metrics, "time_to_first_token_seconds_count") == 1
    assert value(metrics, "inter_token_latency_seconds_count") == 4
    assert value(metrics, "inter_token_latency_seconds_sum") == 4  # 1, 0, 3, 0
    assert value(metrics, "inter_token_latency_seconds_bucket", le="0.01") == 2
    assert value(metrics, "request_time_per_output_token_seconds_sum") == 1
    assert value(metrics, "e2e_request_latency_seconds_sum") == 7.5
    assert value(metrics, "e2e_request_latency_seconds_count") == 1
    assert value(metrics, "request_success_total", finished_reason="stop") == 1
    assert value(metrics, "request_success_total", finished_reason="abort") == 0
    assert value(metrics, "prompt_tokens_total") == 10
    assert value(metrics, "prompt_tokens_cached_total") == 4
    assert value(metrics, "generation_tokens_total") == 5
    assert value(metrics, "request_params_max_tokens_sum") == 8
    assert value(metrics, "request_queue_time_seconds_sum") == 1
    assert value(metrics, "request_prefill_time_seconds_sum") == 2
    assert value(metrics, "request_decode_time_seconds_sum") == 4
    assert value(metrics, "request_inference_time_seconds_sum") == 6
    assert value(metrics, "request_prefill_kv_computed_tokens_sum") == 6


@pytest.mark.parametrize(
    ("flags", "own", "docs", "paper"),
    [
        ({"tbt_slo_ms": 500.0, "ttft_slo_ms": 3000.0}, {}, 0.6, 0.3),
        # Without an objective for the first token it is on time, and leaves no slack.
        ({"tbt_slo_ms": 500.0}, {}, 0.6, 0.3),
        ({}, {"tbt_seconds": 0.5, "ttft_seconds": 4.5}, 0.8, 4 / 7),
        ({"tbt_slo_ms": 9.0}, {"tbt_seconds": 3.0}, 1.0, 1.0),
    ],
)
def test_fluidity_goes_by_the_requests_own_objectives_or_else_the_servers(flags, own, docs, paper):
    config = Config(scheduler=SchedulerConfig(**flags))
    metrics = Metrics(config, engine_ready(), "m")
    record = metrics.start_sequence(
        num_prompt_tokens=10, max_tokens=8, arrival_time=100.0, objectives=Objectives(**own)
    )
    record.tokens(1, 0, 103.0)
    record.tokens(2, 0, 104.0)
    record.tokens(2, 0, 107.0)
    record.finish("stop", 5, 107.5)
    assert value(metrics, "request_fluidity_docs_count") == 1
    assert value(metrics, "request_fluidity_docs_sum") == pytest.approx(docs)
    assert value(metrics, "request_fluidity_paper_sum") == pytest.approx(paper)


def test_without_an_objective_for_gaps_there_is_no_fluidity():
    metrics = make()
    record = metrics.start_sequence(
        num_prompt_tokens=1,
        max_tokens=8,
        arrival_time=0.0,
        objectives=Objectives(ttft_seconds=1.0),
    )
    record.tokens(2, 0, 3.0)
    record.finish("stop", 2, 4.0)
    assert value(metrics, "request_fluidity_docs_count") == 0


def test_a_sequence_aborted_in_the_queue_has_no_phases():
    metrics = make()
    record = metrics.start_sequence(num_prompt_tokens=10, max_tokens=8, arrival_time=100.0)
    record.finish("abort", 0, 102.0)
    never = SequenceTimings(
        arrival_time=100.0, first_scheduled_time=None, first_token_time=None, finish_time=102.0
    )
    record.phases(finished(reason="abort", timings=never, num_output_tokens=0))
    assert value(metrics, "request_success_total", finished_reason="abort") == 1
    assert value(metrics, "e2e_request_latency_seconds_count") == 1
    assert value(metrics, "time_to_first_token_seconds_count") == 0
    assert value(metrics, "request_queue_time_seconds_count") == 0
    assert value(metrics, "prompt_tokens_total") == 0


def test_a_prompt_without_output_counts_as_a_prompt():
    metrics = make()
    record = metrics.start_sequence(num_prompt_tokens=10, max_tokens=0, arrival_time=100.0)
    record.finish("length", 0, 102.0)
    assert value(metrics, "prompt_tokens_total") == 10
    assert value(metrics, "time_to_first_token_seconds_count") == 0


def test_token_buckets_are_1_2_5_up_to_the_limit():
    assert token_count_buckets(100) == (1, 2, 5, 10, 20, 50, 100)
    assert token_count_buckets(8192)[-1] == 5000
    assert token_count_buckets(1) == (1,)


def test_the_pipelines_series_exist_at_zero_for_every_label():
    metrics = make(num_stages=3)
    for reason in CHUNK_REASONS:
        assert value(metrics, "dynamic_chunks_total", reason=reason) == 0
        assert value(metrics, "dynamic_chunk_tokens_count", reason=reason) == 0
        assert value(metrics, "dynamic_chunk_tokens_bucket", reason=reason, le="64.0") == 0
    for state in CALIBRATION_STATES:
        assert value(metrics, "calibration_state", state=state) == (state == "off")
    for stage in ("0", "1", "2"):
        assert value(metrics, "stage_busy_seconds_total", stage=stage) == 0
        assert value(metrics, "stage_bubble_seconds_total", stage=stage) == 0
        assert value(metrics, "latency_model_fit_error", stage=stage) == 0
        for name in COEFFICIENTS:
            labels = {"stage": stage, "coefficient": name}
            assert value(metrics, "latency_model_coefficient", **labels) == 0
    assert value(metrics, "chunk_prediction_error") == 0


def test_the_pipelines_series_follow_the_engine():
    sizes = [0] * (len(CHUNK_SIZE_BUCKETS_TOKENS) + 1)
    sizes[2], sizes[-1] = 3, 1
    chunking = ChunkingStats(
        policy="makespan",
        num_stages=2,
        state="installed",
        reason="fitted",
        chunks_by_reason={"model": 4},
        chunk_tokens_by_reason={"model": 40_600},
        chunk_sizes_by_reason={"model": sizes},
        coefficients=[{"linear_seconds_per_token": 0.002}, {"linear_seconds_per_token": 0.003}],
        fit_errors=[0.04, None],
        prediction_error=0.07,
    )
    stats = EngineStats(
        stage_busy_seconds=[3.0, 2.0], stage_bubble_seconds=[1.0, 2.0], chunking=chunking
    )
    metrics = make(num_stages=2)
    metrics.observe_engine(EngineEvents(events=[], stats=stats))
    bucket = "dynamic_chunk_tokens_bucket"
    assert value(metrics, bucket, reason="model", le="128.0") == 0
    assert value(metrics, bucket, reason="model", le="256.0") == 3
    assert value(metrics, bucket, reason="model", le="32768.0") == 3
    assert value(metrics, bucket, reason="model", le="+Inf") == 4
    assert value(metrics, "dynamic_chunk_tokens_sum", reason="model") == 40_600
    assert value(metrics, "calibration_state", state="installed") == 1
    assert value(metrics, "calibration_state", state="off") == 0
    slope = {"coefficient": "linear_seconds_per_token"}
    assert value(metrics, "latency_model_coefficient", stage="1", **slope) == 0.003
    assert value(metrics, "latency_model_fit_error", stage="0") == 0.04
    assert value(metrics, "latency_model_fit_error", stage="1") == 0
    assert value(metrics, "chunk_prediction_error") == 0.07
    assert value(metrics, "stage_busy_seconds_total", stage="0") == 3
    assert value(metrics, "stage_bubble_seconds_total", stage="1") == 2


def test_the_words_that_label_series_are_the_engines():
    assert set(CHUNK_REASONS) == set(get_args(Reason))
    assert set(CALIBRATION_STATES) == {"off", *get_args(CalibrationState), *get_args(AtomState)}
    assert list(COEFFICIENTS) == [field.name for field in fields(LatencyModel)]
