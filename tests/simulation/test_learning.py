"""The makespan policy learns from simulated stages, whatever the traffic looks like."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from atom_lite.simulation.contest import Scenario
from atom_lite.simulation.policies import learning_controller
from atom_lite.simulation.simulator import Simulation, run_startup_sweep
from atom_lite.simulation.workloads import (
    ClosedLoop,
    OpenLoop,
    Request,
    draw_requests,
    single,
    uniform,
)
from tests.simulation.machines import MAKESPAN, machine, ttft, uneven
from tests.unit.chunking.samples import SERVED

if TYPE_CHECKING:
    from atom_lite.chunking.controller import ChunkingController
    from atom_lite.chunking.latency_model import LatencyModel
    from atom_lite.scheduler.limits import SchedulerLimits
    from atom_lite.simulation.stages import PipelineSpec

LONGEST = 16384


def limits_for(pipeline: PipelineSpec) -> SchedulerLimits:
    requests = (Request(prompt_tokens=LONGEST, output_tokens=64),) * 16
    return Scenario(pipeline=pipeline, requests=requests).limits(MAKESPAN)


def after_a_burst(pipeline: PipelineSpec) -> tuple[ChunkingController, SchedulerLimits]:
    """A server whose first traffic is sixteen prompts at once, then one after the other."""
    limits = limits_for(pipeline)
    controller = learning_controller(MAKESPAN, pipeline.num_stages, limits)
    burst = draw_requests(16, 1, uniform(500, 12_000), uniform(1, 40))
    Simulation(pipeline, limits, controller, ClosedLoop(burst, 16)).run()
    later = draw_requests(12, 2, uniform(2000, 12_000), uniform(1, 4))
    Simulation(pipeline, limits, controller, ClosedLoop(later, 1)).run()
    return controller, limits


def test_a_burst_before_calibration_and_noise_still_end_with_a_good_model() -> None:
    noisy = machine(4, SERVED, noise=0.15, seed=3)
    controller, limits = after_a_burst(noisy)
    assert controller.status().state == "installed"
    quiet = machine(4, SERVED)
    learned = Simulation(quiet, limits, controller, single(8192)).run().sequences[0].ttft_seconds
    known = ttft(Scenario(pipeline=quiet, requests=(Request(prompt_tokens=8192),)), MAKESPAN)
    assert learned <= 1.03 * known


def test_each_stage_gets_its_own_model() -> None:
    factors = (1.0, 1.0, 1.3)
    controller, _ = after_a_burst(uneven(factors, SERVED))
    head, *_, last = controller.status().models
    ratio = last.chunk_seconds(4096, 1024) / head.chunk_seconds(4096, 1024)
    assert ratio == pytest.approx(1.3, rel=0.05)


def test_the_startup_sweep_alone_gives_a_first_model() -> None:
    pipeline = machine(2, SERVED)
    limits = limits_for(pipeline)
    controller = learning_controller(MAKESPAN, 2, limits)
    notices = run_startup_sweep(controller, pipeline)
    assert any("installed" in notice for notice in notices)
    run = Simulation(pipeline, limits, controller, single(8192)).run()
    known = ttft(Scenario(pipeline=pipeline, requests=(Request(prompt_tokens=8192),)), MAKESPAN)
    assert run.sequences[0].ttft_seconds <= 1.03 * known


def test_a_machine_that_slows_down_is_learned_anew() -> None:
    pipeline = machine(2, SERVED, noise=0.03, seed=1)
    controller, limits = after_a_burst(pipeline)
    slower = uneven((1.5, 1.5), SERVED)
    prompts = [Request(prompt_tokens=8192 - 512 * (i % 5)) for i in range(40)]
    notices = Simulation(slower, limits, controller, ClosedLoop(prompts, 1)).run().notices
    assert any("drifted" in notice for notice in notices)
    model = controller.status().models[0]
    assert model.chunk_seconds(4096, 1024) == pytest.approx(
        1.5 * SERVED.chunk_seconds(4096, 1024), rel=0.05
    )


def test_decodes_are_learned_apart_from_prefills() -> None:
    true = SERVED.with_decodes(0.0005, 2e-7)
    pipeline = machine(2, true)
    limits = limits_for(pipeline)
    controller = learning_controller(MAKESPAN, 2, limits)
    run_startup_sweep(controller, pipeline)
    streams = [
        Request(prompt_tokens=200 * i, output_tokens=60, arrival_seconds=0.5 * i)
        for i in range(1, 17)
    ]
    Simulation(pipeline, limits, controller, OpenLoop(streams)).run()
    learned: LatencyModel = controller.status().models[0]
    for rows, context in ((4, 8000), (8, 20_000)):
        expected = true.predict((), decode_rows=rows, decode_context_tokens=context)
        assert learned.predict(
            (), decode_rows=rows, decode_context_tokens=context
        ) == pytest.approx(expected, rel=0.1)
