"""Policy slo over two stages: objectives decide when tokens come, never which."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from atom_lite.config import ParallelConfig
from tests.pipeline.tiny_run import outputs, tiny_config

if TYPE_CHECKING:
    from pathlib import Path


def test_tokens_over_two_stages_are_the_same_with_objectives(tmp_path: Path) -> None:
    config = tiny_config(tmp_path)
    promised = dataclasses.replace(
        config,
        scheduler=dataclasses.replace(config.scheduler, tbt_slo_ms=2.0, ttft_slo_ms=20.0),
        parallel=ParallelConfig(pipeline_parallel_size=2),
    )
    assert promised.scheduler.policy == "slo"
    assert outputs(promised) == outputs(config)
