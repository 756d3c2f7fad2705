"""Prometheus metrics: vLLM's suffixes, labels and buckets under our own prefix.

Lives in the frontend process. Three sources feed it:

    engine frames     gauges and engine totals (`observe_engine`), tokens per step
    sequences         a `SequenceRecord` each: latencies, token counts, how it ended
    HTTP              requests and their duration by route (`observe_http`)

Every series exists at zero from the start. Definitions where the name leaves room:

- *inter_token_latency*: time between tokens as they reach the frontend. When one event brings
  several tokens, the first carries the whole gap and the others count as zero gaps, as a client
  sees them.
- *request_success* counts sequences by how they ended, aborted and failed ones too.
- *prompt_tokens* counts a prompt when its first output token arrives; a sequence that ends before
  adds nothing. *generation_tokens* counts tokens as they arrive.
- *request_fluidity* takes sequences that have an objective for their gaps and got a token; without
  one for the first token that is on time whenever it comes, and leaves no slack.
- e2e latency and token histograms take every ended sequence, phases (queue, prefill, decode,
  inference) only what did happen to it.

Source of names and buckets: vLLM 0.33, `v1/metrics`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client import disable_created_metrics as _disable_created_series
from prometheus_client.exposition import choose_encoder
from prometheus_client.gc_collector import GCCollector
from prometheus_client.openmetrics.exposition import ALLOWUTF8
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from atom_lite.config_scheduling import NO_OBJECTIVES, Objectives
from atom_lite.observability.engine_collector import EngineCollector
from atom_lite.observability.fluidity import FluidityCount
from atom_lite.observability.metric_names import (
    E2E_BUCKETS,
    FLUIDITY_BUCKETS,
    HTTP_BUCKETS,
    ITERATION_TOKENS_BUCKETS,
    ITL_BUCKETS,
    PREFIX,
    TTFT_BUCKETS,
    RenamedForVllm,
    token_count_buckets,
)
from atom_lite.observability.sequence_record import SequenceRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from atom_lite.config import Config
    from atom_lite.messages import EngineEvents, EngineReady

FINISHED_REASONS = ("stop", "length", "abort", "error", "repetition")
REJECTION_REASONS = ("queue_full", "shutting_down", "engine_dead")
_STATUS_CLASSES = ("2xx", "4xx", "5xx")


class Metrics:
    """All series of one server.

    Args:
        config: for `--metrics-compat` and the labels of cache_config_info.
        ready: what the engine said at start.
        model_name: value of the `model_name` label.
    """

    def __init__(self, config: Config, ready: EngineReady, model_name: str) -> None:
        _disable_created_series()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._labels = {"model_name": model_name, "engine": "0"}
        self._objectives = config.scheduler.objectives
        self._compat = config.observability.metrics_compat == "vllm"
        self._engine = EngineCollector(self._labels, ready.num_stages)
        self.registry.register(self._engine)
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self._make_counters()
        self._make_latencies()
        self._make_sizes(ready.max_model_len)
        self._make_http()
        self._describe_cache(config, ready)

    # ------------------------------------------------------------ for the rest of the program

    def observe_engine(self, frame: EngineEvents) -> None:
        """Take a frame's snapshot and step sizes; called for every frame, so it must be cheap."""
        self._engine.stats = frame.stats
        for num_tokens in frame.step_tokens:
            self.iteration_tokens.observe(num_tokens)

    def observe_engine_death(self) -> None:
        """The engine is gone: nothing runs, waits or holds KV blocks."""
        self._engine.rest()

    def start_prompt(self, num_choices: int) -> None:
        """Count a prompt by the choices that are asked of it."""
        self.request_params_n.observe(num_choices)

    def start_sequence(
        self,
        *,
        num_prompt_tokens: int,
        max_tokens: int,
        arrival_time: float,
        objectives: Objectives = NO_OBJECTIVES,
    ) -> SequenceRecord:
        """Open the record of a sequence that is about to be submitted.

        Its own objectives go before the server's; with one for its gaps its fluidity is counted.
        """
        self.request_params_max_tokens.observe(max_tokens)
        promised = objectives.over(self._objectives)
        tbt = promised.tbt_seconds
        fluidity = None if tbt is None else FluidityCount(promised.ttft_seconds, tbt)
        return SequenceRecord(self, num_prompt_tokens, arrival_time, fluidity)

    def reject(self, reason: str) -> None:
        """Count a request that admission refused; one of REJECTION_REASONS."""
        self.admission_rejections[reason].inc()

    def expect_routes(self, routes: Iterable[tuple[str, str]]) -> None:
        """Create the HTTP series of (handler, method) pairs at zero."""
        for handler, method in routes:
            for status in _STATUS_CLASSES:
                self.http_requests.labels(handler, method, status)
            self.http_duration.labels(handler, method)

    def observe_http(self, handler: str, method: str, status: int, seconds: float) -> None:
        """Count a finished HTTP request; `handler` is the route's template, never a raw path."""
        self.http_requests.labels(handler, method, f"{status // 100}xx").inc()
        self.http_duration.labels(handler, method).observe(seconds)

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """The page of /metrics and its content type, as the `Accept` header asks."""
        encoder, content_type = choose_encoder(accept)
        source = RenamedForVllm(self.registry) if self._compat else self.registry
        # Our names need no escaping under any scheme, but the client library's OpenMetrics writer
        # turns the colon of sample names into an underscore unless told that all is allowed.
        page = encoder(cast("CollectorRegistry", source), escaping=ALLOWUTF8)  # type: ignore[call-arg]
        return page, content_type

    # ------------------------------------------------------------ making the series

    def _counter(self, suffix: str, text: str) -> Counter:
        counter = Counter(PREFIX + suffix, text, list(self._labels), registry=self.registry)
        return counter.labels(**self._labels)

    def _counters(
        self, suffix: str, text: str, label: str, values: Sequence[str]
    ) -> dict[str, Counter]:
        family = Counter(PREFIX + suffix, text, [*self._labels, label], registry=self.registry)
        return {value: family.labels(**self._labels, **{label: value}) for value in values}

    def _histogram(self, suffix: str, text: str, buckets: Sequence[float]) -> Histogram:
        histogram = Histogram(
            PREFIX + suffix, text, list(self._labels), buckets=buckets, registry=self.registry
        )
        return histogram.labels(**self._labels)

    def _make_counters(self) -> None:
        self.prompt_tokens = self._counter(
            "prompt_tokens", "Prompt tokens of sequences that got a first token."
        )
        self.prompt_tokens_cached = self._counter(
            "prompt_tokens_cached", "Of prompt_tokens, those taken from the prefix cache."
        )
        self.generation_tokens = self._counter("generation_tokens", "Output tokens received.")
        self.request_success = self._counters(
            "request_success", "Ended sequences by reason.", "finished_reason", FINISHED_REASONS
        )
        self.admission_rejections = self._counters(
            "admission_rejections", "Requests refused with 503.", "reason", REJECTION_REASONS
        )

    def _make_latencies(self) -> None:
        make = self._histogram
        self.ttft = make(
            "time_to_first_token_seconds", "From arrival to the first token.", TTFT_BUCKETS
        )
        self.itl = make(
            "inter_token_latency_seconds", "Gap between tokens of a sequence.", ITL_BUCKETS
        )
        self.time_per_output_token = make(
            "request_time_per_output_token_seconds",
            "Decode time of a sequence per token after its first.",
            ITL_BUCKETS,
        )
        self.e2e = make("e2e_request_latency_seconds", "From arrival to the end.", E2E_BUCKETS)
        self.queue_time = make("request_queue_time_seconds", "Time waiting.", E2E_BUCKETS)
        self.inference_time = make(
            "request_inference_time_seconds", "From first scheduled to the end.", E2E_BUCKETS
        )
        self.prefill_time = make(
            "request_prefill_time_seconds", "From first scheduled to first token.", E2E_BUCKETS
        )
        self.decode_time = make(
            "request_decode_time_seconds", "From first token to the end.", E2E_BUCKETS
        )

        self.fluidity_docs = make(
            "request_fluidity_docs",
            "Share of a sequence's tokens on time by its objectives, each counted once.",
            FLUIDITY_BUCKETS,
        )
        self.fluidity_paper = make(
            "request_fluidity_paper",
            "Share of a sequence's deadlines kept; a late token misses all that have passed.",
            FLUIDITY_BUCKETS,
        )

    def _make_sizes(self, max_model_len: int) -> None:
        make, tokens = self._histogram, token_count_buckets(max_model_len)
        self.request_prompt_tokens = make("request_prompt_tokens", "Prompt tokens.", tokens)
        self.request_generation_tokens = make("request_generation_tokens", "Output tokens.", tokens)
        self.request_max_generation_tokens = make(
            "request_max_num_generation_tokens", "Most output tokens of a request.", tokens
        )
        self.request_params_max_tokens = make(
            "request_params_max_tokens", "The max_tokens in force.", tokens
        )
        self.request_prefill_computed = make(
            "request_prefill_kv_computed_tokens", "Prompt tokens not taken from cache.", tokens
        )
        self.request_params_n = make("request_params_n", "The n parameter.", (1, 2, 5, 10, 20))
        self.request_preemptions = make(
            "request_num_preemptions", "Preemptions of a sequence.", (1, 2, 3, 4, 5, 10, 20)
        )
        self.iteration_tokens = make(
            "iteration_tokens_total", "Tokens of a step.", ITERATION_TOKENS_BUCKETS
        )

    def _make_http(self) -> None:
        self.http_requests = Counter(
            "http_requests",
            "HTTP requests by route, method and status class.",
            ["handler", "method", "status"],
            registry=self.registry,
        )
        self.http_duration = Histogram(
            "http_request_duration_seconds",
            "Duration of HTTP requests, to the last byte of the answer.",
            ["handler", "method"],
            buckets=HTTP_BUCKETS,
            registry=self.registry,
        )

    def _describe_cache(self, config: Config, ready: EngineReady) -> None:
        cache = config.cache
        info: dict[str, Any] = {
            "block_size": ready.block_size,
            "num_gpu_blocks": ready.num_blocks,
            "cache_dtype": ready.dtype,
            "enable_prefix_caching": cache.enable_prefix_caching,
            "gpu_memory_utilization": cache.gpu_memory_utilization,
            "kv_cache_memory_bytes": ready.memory_bytes.get("kv_cache", 0),
            "num_gpu_blocks_override": cache.num_gpu_blocks_override,
        }
        labels = self._labels | {name: str(value) for name, value in info.items()}
        gauge = Gauge(
            PREFIX + "cache_config_info",
            "The KV cache's settings as labels; the value is 1.",
            list(labels),
            registry=self.registry,
        )
        gauge.labels(**labels).set(1)
