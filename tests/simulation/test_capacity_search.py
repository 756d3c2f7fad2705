"""The rate that a policy serves, and what the claims of the field rest on in the simulator."""

from __future__ import annotations

import math

import pytest

from atom_lite.chunking.latency_model import LatencyModel
from atom_lite.errors import ConfigError
from atom_lite.simulation.batching import Server, parse_batching, run_batching
from atom_lite.simulation.capacity_search import bisect_rate, find_capacity, fluid, tail
from atom_lite.simulation.colocation import (
    Streams,
    colocated_seconds,
    crossover_tokens,
    disaggregated_seconds,
    wall_tokens,
)
from atom_lite.simulation.gpu_models import FALCON_180B, MISTRAL_7B
from atom_lite.simulation.service_levels import Promise
from atom_lite.simulation.stages import PipelineSpec
from atom_lite.simulation.traces import Mix, draw_mix, varying
from atom_lite.simulation.workloads import Request, constant
from benchmarks import simulated_claims

MODEL = LatencyModel.from_milliseconds(a=2e-6, b=0.05, c=10.0).with_decodes(2e-4, 1e-7)
REBUILDING = LatencyModel.from_milliseconds(a=2e-6, b=0.05, c=10.0, gamma=1e-3)
SERVER = Server(pipeline=PipelineSpec(models=(MODEL,)), kv_tokens=200_000, max_model_len=8192)


@pytest.mark.parametrize("limit", [0.013, 0.9, 1.0, 41.0])
@pytest.mark.parametrize("start", [0.1, 1.0, 5.0])
def test_the_bisection_finds_the_highest_rate_that_is_served(limit: float, start: float) -> None:
    found = bisect_rate(lambda rate: rate <= limit, start)
    assert limit / 1.03 <= found.requests_per_second <= limit


def test_a_rate_that_no_policy_serves_is_0_and_nonsense_is_refused() -> None:
    assert bisect_rate(lambda _rate: False, 1.0).requests_per_second == 0.0
    with pytest.raises(ConfigError, match="precision"):
        bisect_rate(lambda _rate: True, 0.0)


@pytest.mark.parametrize("keeps", [tail, fluid])
def test_stall_free_serves_more_than_prefill_first(keeps: object) -> None:
    """A prompt of 8000 tokens takes half a second, ten times the objective of a gap."""
    mix = Mix(short=constant(200), long=constant(8000), long_share=0.5, output=constant(16))
    requests = draw_mix(24, mix, 0)
    promise = Promise(
        ttft_seconds=1.0,
        tbt_seconds=0.05,
        prefill_seconds=lambda tokens: 2.0 * MODEL.chunk_seconds(0, tokens),
    )
    rates = [
        find_capacity(
            SERVER,
            parse_batching(text),
            requests,
            promise,
            keeps=keeps,  # type: ignore[arg-type]
        ).requests_per_second
        for text in ("stall-free:256", "prefill-first")
    ]
    assert rates[0] > rates[1] > 0.0


def test_an_unknown_policy_or_budget_is_refused() -> None:
    with pytest.raises(ConfigError, match="--batching-policy is 'none'"):
        run_batching(SERVER, parse_batching("none"), [Request(prompt_tokens=8)], tbt_seconds=1.0)
    with pytest.raises(ConfigError, match="no number of tokens"):
        parse_batching("stall-free:many")
    assert str(parse_batching("stall-free:1K")) == "stall-free:1024"


def test_beside_streams_a_rebuilt_prefix_is_a_wall_where_the_closed_form_says() -> None:
    streams = Streams(rows=0, context_tokens=0, tbt_seconds=0.03)
    wall = wall_tokens(REBUILDING, streams)
    assert wall == pytest.approx(20_000)
    assert wall_tokens(REBUILDING, streams, groups=2) == pytest.approx(2 * wall)
    assert math.isfinite(colocated_seconds(REBUILDING, 18_000, streams))
    assert colocated_seconds(REBUILDING, 21_000, streams) == math.inf
    assert wall_tokens(MODEL, streams) == math.inf
    assert math.isfinite(colocated_seconds(MODEL, 400_000, streams))
    crossover = crossover_tokens(
        REBUILDING, streams, transfer_seconds_per_token=1e-6, slowdown=100.0
    )
    assert crossover == 32_768
    no_limit = Streams(rows=0, context_tokens=0, tbt_seconds=math.inf)
    alone = disaggregated_seconds(MODEL, 40_000, transfer_seconds_per_token=0.0)
    assert colocated_seconds(MODEL, 40_000, no_limit) == pytest.approx(alone)


def test_the_varying_trace_has_all_requests_in_order() -> None:
    requests = varying([Request(prompt_tokens=index + 1) for index in range(10)], 1.0, 0)
    assert [request.prompt_tokens for request in requests] == list(range(1, 11))
    assert requests == sorted(requests, key=lambda request: request.arrival_seconds)


def test_gpu_models_have_the_published_kind_of_times() -> None:
    """A decode step is mostly weights, a prompt mostly arithmetic; two stages share both."""
    small, large = MISTRAL_7B.stage_model(), FALCON_180B.stage_model()
    assert 0.008 < small.constant_seconds < 0.015 < large.constant_seconds < 0.05
    assert 0.2 < small.chunk_seconds(0, 4096) < 0.5
    assert FALCON_180B.server().pipeline.num_stages == 2
    assert MISTRAL_7B.server().kv_tokens > 400_000


def test_chunks_read_the_kv_again_that_the_formula_says() -> None:
    claim = simulated_claims.rereads("run")
    assert claim.verdict == "holds" and "18,432 against 4,096" in claim.found


def test_the_crossover_row_tells_the_two_kinds_of_attention_apart() -> None:
    claim = simulated_claims.crossover("run")
    assert "GQA: wall none" in claim.found and claim.verdict == "holds"
