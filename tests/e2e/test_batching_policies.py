"""A real model under every policy: who runs when changes no token."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, get_args

from atom_lite.config import Config, ModelConfig, SchedulerConfig
from atom_lite.config_scheduling import BatchingPolicyName
from atom_lite.engine.in_process import Engine
from atom_lite.messages import SamplingParams
from tests.fakes.tiny_model import write_tiny_model

if TYPE_CHECKING:
    from pathlib import Path

PROMPTS = [[(7 * i + j) % 400 + 5 for j in range(20 + 90 * i)] for i in range(5)]
GREEDY = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)


def outputs(directory: Path, **policies: Any) -> list[list[int]]:
    """All prompts at once, more than there are slots, the longest above the budget."""
    config = Config(
        model=ModelConfig(
            model=str(directory), load_format="dummy", dtype="float32", max_model_len=1024
        ),
        scheduler=SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=64, **policies),
    )
    with Engine(config) as engine, ThreadPoolExecutor(len(PROMPTS)) as clients:
        return list(clients.map(lambda prompt: engine.complete(prompt, GREEDY), PROMPTS))


def test_every_policy_gives_the_same_tokens(tmp_path: Path) -> None:
    write_tiny_model(tmp_path)
    expected = outputs(tmp_path)
    assert [len(tokens) for tokens in expected] == [12] * len(PROMPTS)
    for name in get_args(BatchingPolicyName):
        assert outputs(tmp_path, batching_policy=name) == expected, name
    for policies in (
        {"enable_hybrid_batching": False},
        {"enable_hybrid_batching": False, "enable_chunked_prefill": False},
        {"capacity_policy": "no-evict"},
        {"tbt_slo_ms": 3.0, "ttft_slo_ms": 20.0},
    ):
        assert outputs(tmp_path, **policies) == expected, policies
