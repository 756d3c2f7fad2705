"""What the field says of its batching policies, under the real scheduler and a virtual clock.

Eight streams decode, at about 12 ms a token, when a prompt of 6000 tokens arrives.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from atom_lite.chunking.controller import StaticController
from atom_lite.chunking.latency_model import LatencyModel
from atom_lite.chunking.planners.fixed import FixedPlanner
from atom_lite.scheduler.limits import SchedulerLimits
from atom_lite.simulation.simulator import Simulation
from atom_lite.simulation.stages import PipelineSpec
from atom_lite.simulation.workloads import OpenLoop, Request

MODEL = LatencyModel.from_milliseconds(a=2e-6, b=0.05, c=10.0).with_decodes(2e-4, 1e-7)
PROMPT_TOKENS = 6000
BUDGET_TOKENS = 512
NUM_STREAMS = 8
PROMPT_SECONDS = MODEL.chunk_seconds(0, PROMPT_TOKENS)
LIMITS = SchedulerLimits(
    max_num_seqs=16,
    decode_step_tokens=BUDGET_TOKENS,
    prefill_step_tokens=BUDGET_TOKENS,
    max_model_len=8192,
    block_size=16,
    num_blocks=16 * 512,
    eos_token_ids=frozenset(),
)


def longest_gap_and_ttft(**policies: Any) -> tuple[float, float]:
    """Of the streams, and of the long prompt, in seconds."""
    requests = [Request(prompt_tokens=16, output_tokens=400) for _ in range(NUM_STREAMS)]
    requests.append(
        Request(prompt_tokens=PROMPT_TOKENS, output_tokens=4, arrival_seconds=1.0),
    )
    controller = StaticController(FixedPlanner(), "fixed")
    limits = dataclasses.replace(LIMITS, **policies)
    spec = PipelineSpec(models=(MODEL,))
    run = Simulation(spec, limits, controller, OpenLoop(requests)).run()
    *streams, long_one = run.sequences
    return max(gap for stream in streams for gap in stream.gaps_seconds), long_one.ttft_seconds


def test_prefill_first_stalls_streams_for_a_whole_prompt_and_stall_free_for_one_budget() -> None:
    decode_seconds = MODEL.predict((), decode_rows=NUM_STREAMS, decode_context_tokens=8 * 416)
    last_chunk = MODEL.chunk_seconds(PROMPT_TOKENS - BUDGET_TOKENS, BUDGET_TOKENS)
    for policy in ("prefill-first", "orca"):
        stall, _ = longest_gap_and_ttft(batching_policy=policy)
        assert PROMPT_SECONDS <= stall <= PROMPT_SECONDS + 2 * decode_seconds
    stall, _ = longest_gap_and_ttft(batching_policy="stall-free")
    assert decode_seconds < stall <= last_chunk + decode_seconds
    assert 7 * stall < PROMPT_SECONDS  # 12 budgets of tokens, each with a step's constant


def test_only_chunks_and_hybrid_batches_together_keep_both_short() -> None:
    """Sarathi-Serve's ablation: whole prompts stall the streams, lone chunks delay the prompt."""
    both = longest_gap_and_ttft()
    chunks_alone = longest_gap_and_ttft(enable_hybrid_batching=False)
    hybrid_alone = longest_gap_and_ttft(batching_policy="orca")
    assert hybrid_alone[0] > 7 * both[0]
    assert chunks_alone[0] > both[0] and chunks_alone[1] > 1.1 * both[1]
    # Cutting the prompt costs it something, and lone chunks with turns of decodes cost it more.
    assert hybrid_alone[1] < both[1] < chunks_alone[1]


def test_under_request_level_batching_the_prompt_waits_for_the_longest_stream() -> None:
    _, waited = longest_gap_and_ttft(batching_policy="request-level")
    _, at_once = longest_gap_and_ttft(batching_policy="prefill-first")
    assert waited > at_once + 2.0


def test_the_prompts_own_time_is_least_where_nothing_shares_its_steps() -> None:
    ttft = {
        name: longest_gap_and_ttft(batching_policy=name)[1]
        for name in ("prefill-first", "unified", "stall-free")
    }
    assert ttft["prefill-first"] < ttft["unified"] == ttft["stall-free"]
