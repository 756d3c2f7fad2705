"""A chunk-size policy's state as the snapshot that `/server_info` and `/metrics` show.

Pure; runs in the head process.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from atom_lite.chunking.planners.makespan import MakespanPlanner
from atom_lite.messages import ChunkingStats

if TYPE_CHECKING:
    from atom_lite.chunking.controller import ChunkingController


def chunking_stats(
    controller: ChunkingController, policy: str, *, num_stages: int
) -> ChunkingStats:
    """Gather it all.

    Args:
        controller: the policy.
        policy: its name, as shown.
        num_stages: of the pipeline.
    """
    status, report = controller.status(), controller.report
    planner = controller.planner
    plan = planner.last_plan if isinstance(planner, MakespanPlanner) else None
    counts = report.total_by_reason
    models = status.models
    if len(models) == 1:  # ATOM's: the head's model stands for every stage
        models *= num_stages
    return ChunkingStats(
        policy=policy,
        num_stages=num_stages,
        state=status.state,
        reason=status.reason,
        chunks_by_reason={str(reason): count for reason, count in counts.items()},
        chunk_tokens_by_reason={
            str(reason): tokens for reason, tokens in report.tokens_by_reason.items()
        },
        chunk_sizes_by_reason={str(reason): report.size_buckets(reason) for reason in counts},
        models=[model.describe() for model in status.models],
        coefficients=[asdict(model) for model in models],
        fit_errors=[
            None if quality is None else quality.median_relative_error
            for quality in status.qualities
        ],
        fits=[None if quality is None else asdict(quality) for quality in status.qualities],
        prediction_error=status.recent_error,
        last_plan=[] if plan is None else list(plan.sizes),
        last_plan_start=0 if plan is None else plan.span.start,
        last_plan_seconds=None if plan is None else plan.predicted_seconds,
    )
