"""What a step plan holds, in the latency model's terms.

The engine's calibration and the simulated stages must read a plan in the same way, or the simulator
would time another step than the one that is learned from. Pure; runs in the head process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from atom_lite.chunking.calibrator import StepSample
from atom_lite.chunking.latency_model import Chunk

if TYPE_CHECKING:
    from atom_lite.messages import StepPlan


def step_sample(plan: StepPlan) -> StepSample:
    """Chunks and decode rows of a plan; the stages' times are still to come."""
    chunks = [row for row in plan.rows if not row.token_ids]
    decodes = [row for row in plan.rows if row.token_ids]
    return StepSample(
        chunks=tuple(Chunk(row.start, row.num_tokens) for row in chunks),
        stage_seconds=(),
        decode_rows=len(decodes),
        decode_context_tokens=sum(row.start + 1 for row in decodes),
        first_sequence_id=chunks[0].sequence_id if chunks else -1,
    )
