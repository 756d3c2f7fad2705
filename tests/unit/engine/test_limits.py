"""What the frontend is told at start of what the engine takes."""

from __future__ import annotations

from atom_lite.engine.limits import engine_ready
from atom_lite.scheduler.limits import SchedulerLimits
from atom_lite.worker.runner import RunnerInfo

MEMORY = {"weights": 7, "kv_cache": 5, "process": 3}
INFO = RunnerInfo(
    num_blocks=8,
    max_model_len=64,
    num_stages=1,
    layers_per_stage=(1,),
    vocab_size=100,
    hidden_size=8,
    eos_token_ids=(0,),
    dtype="float32",
    activation_dtype="float32",
    quantization="none",
    device="cpu",
    architecture="X",
    default_sampling={},
    memory_bytes=MEMORY,
    activation_bytes_per_token=1000,
)


def test_memory_is_told_by_kind_with_the_most_that_a_step_takes() -> None:
    limits = SchedulerLimits(
        max_num_seqs=4,
        decode_step_tokens=16,
        prefill_step_tokens=32,
        max_model_len=64,
        block_size=8,
        num_blocks=8,
        eos_token_ids=frozenset({0}),
    )
    activations = 32 * 1000 + 4 * 100 * 4  # 32 tokens; logits of 4 rows in float32
    assert engine_ready(limits, INFO).memory_bytes == MEMORY | {"activations": activations}
