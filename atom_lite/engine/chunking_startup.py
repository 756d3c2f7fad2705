"""What the head learns before its first request: a saved profile, or else the startup sweep.

The sweep's shapes come from the policy (`chunking/startup.py`); here they become plans for the
executor, with made-up token ids and a prefix that is taken as there. Head process, at start only.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from atom_lite.errors import EngineError
from atom_lite.messages import SamplingParams, SequenceStart, StepPlan, StepRow

if TYPE_CHECKING:
    from atom_lite.chunking.latency_model import Chunk
    from atom_lite.chunking.startup import StartupSweep
    from atom_lite.engine.executor import Executor
    from atom_lite.messages import StepResult

_POLL_SECONDS = 0.0005
_FIRST_SEQUENCE = -1  # and down from there: the frontend's ids are not negative


def run_sweep(
    executor: Executor,
    sweep: StartupSweep,
    *,
    block_size: int,
    vocab_size: int,
    time_limit_seconds: float,
) -> int:
    """Run the sweep's forwards one after the other; its times go to the sweep.

    Args:
        executor: runs them, and raises where one does not come back.
        sweep: what to run.
        block_size: tokens of a KV block.
        vocab_size: made-up token ids are below it.
        time_limit_seconds: how long a device may owe the time of a forward that has come back; 0 is
            for ever. An accelerator that is stuck shows here.

    Returns:
        The first step id that it has not used.

    Raises:
        EngineError: a time did not come.
        Exception: what a forward raised; the start fails then.
    """
    step_id = 0
    drops: list[tuple[int, int]] = []
    while (shape := sweep.next_shape()) is not None:
        plan = _forward(step_id, shape, drops, block_size=block_size, vocab_size=vocab_size)
        plan = msgspec.structs.replace(plan, skip_attention=sweep.is_attention_free)
        times = _run_now(executor, plan).times
        owed_since = time.monotonic()
        drops = [(_FIRST_SEQUENCE - step_id, 0)]
        step_id += 1
        while not times:  # an accelerator may be at it still; a step without rows asks again
            if 0 < time_limit_seconds < time.monotonic() - owed_since:
                raise EngineError(
                    f"the time of a forward pass of {shape.new_tokens} tokens is not known after "
                    f"--step-timeout-seconds {time_limit_seconds:g}; the device is stuck"
                )
            times = _run_now(executor, StepPlan(step_id=step_id, starts=[], rows=[])).times
            step_id += 1
        sweep.finish_shape(times[0].stage_seconds)
    if drops:
        plan = StepPlan(step_id=step_id, starts=[], rows=[], drops=drops)
        _run_now(executor, plan)
        step_id += 1
    return step_id


def _forward(
    step_id: int,
    shape: Chunk,
    drops: list[tuple[int, int]],
    *,
    block_size: int,
    vocab_size: int,
) -> StepPlan:
    """One forward of a shape: its prefix is taken as there, its tokens are any."""
    num_tokens = shape.prefix_tokens + shape.new_tokens
    sequence_id = _FIRST_SEQUENCE - step_id
    start = SequenceStart(
        sequence_id=sequence_id,
        epoch=0,
        token_ids=[index % vocab_size for index in range(num_tokens)],
        num_prompt_tokens=num_tokens,
        sampling=SamplingParams(max_tokens=1),
    )
    row = StepRow(
        sequence_id=sequence_id,
        epoch=0,
        start=shape.prefix_tokens,
        num_tokens=shape.new_tokens,
        sample=False,
        new_block_ids=list(range(-(-num_tokens // block_size))),
    )
    return StepPlan(step_id=step_id, starts=[start], rows=[row], drops=drops)


def _run_now(executor: Executor, plan: StepPlan) -> StepResult:
    """Run one plan and wait for it; nothing else is in flight before the first request."""
    executor.start(plan)
    while not (results := executor.take_results()):
        time.sleep(_POLL_SECONDS)
    (result,) = results
    return result
