"""Prompts that begin like others before them, and what planning them costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from atom_lite.chunking.background import Inline
from atom_lite.chunking.calibrator import Calibrator
from atom_lite.chunking.controller import FittedController
from atom_lite.chunking.planner import plan_limits
from atom_lite.chunking.planners.makespan import MakespanPlanner
from atom_lite.simulation.contest import Scenario
from atom_lite.simulation.simulator import Simulation
from atom_lite.simulation.workloads import Request
from tests.simulation.machines import MAKESPAN, SMALL, machine

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

STAGES = 4


class Counting(Inline):
    """Counts the jobs that it runs."""

    def __init__(self) -> None:
        self.num_jobs = 0

    def run(self, job: Callable[[], T], deliver: Callable[[T], None]) -> None:
        self.num_jobs += 1
        super().run(job, deliver)


def test_a_prompt_is_searched_once_whatever_of_it_is_cached() -> None:
    turns = (2048, 3072, 4096, 5120)
    scenario = Scenario(
        pipeline=machine(STAGES, SMALL),
        requests=tuple(
            Request(prompt_tokens=tokens, prefix=0, prefix_tokens=tokens - 500) for tokens in turns
        ),
        concurrency=1,
    )
    limits, sizes, searches = scenario.limits(MAKESPAN), plan_limits(2048), Counting()
    controller = FittedController(
        MakespanPlanner(sizes, background=searches),
        Calibrator(STAGES, sizes),
        sizes,
        max_model_len=limits.max_model_len,
    )
    controller.adopt((SMALL,) * STAGES, (None,) * STAGES)
    run = Simulation(scenario.pipeline, limits, controller, scenario.workload()).run()
    assert [record.cached_tokens for record in run.sequences] == [0, 1536, 2560, 3584]
    assert searches.num_jobs == len(turns)
    assert all(len(run.chunk_sizes(index)) > 1 for index in range(len(turns)))
