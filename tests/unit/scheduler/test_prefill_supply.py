"""What the scheduler tells a chunk-size policy: how many prefills could run, and their prefix."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atom_lite.chunking.latency_model import LatencyModel
from atom_lite.chunking.planners.atom import AtomPlanner, AtomSettings, equal_latency_chunk
from atom_lite.scheduler.scheduler import Scheduler
from tests.fakes.scheduler_inputs import (
    CappedChunks,
    finished,
    make_limits,
    make_submission,
    run_step,
    run_until_idle,
)

if TYPE_CHECKING:
    from atom_lite.chunking.planner import Supply


class SupplyLog(CappedChunks):
    """Chunks of eight tokens, and a note of every supply it was told."""

    def __init__(self) -> None:
        super().__init__(8)
        self.supplies: list[int] = []

    def begin_step(self, supply: Supply) -> None:
        self.supplies.append(supply.num_prefills)


def test_atom_31_partial_and_admissible_prompts_are_the_supply() -> None:
    log = SupplyLog()
    scheduler = Scheduler(make_limits(), planner=log)
    for sequence_id in range(3):
        scheduler.submit(make_submission(sequence_id, 30), 0.0)
    run_step(scheduler)
    run_step(scheduler)
    assert log.supplies == [3, 3]


def test_atom_31_an_aborted_prompt_is_no_supply() -> None:
    log = SupplyLog()
    scheduler = Scheduler(make_limits(), planner=log)
    for sequence_id in range(3):
        scheduler.submit(make_submission(sequence_id, 30), 0.0)
    scheduler.abort(1, "abort", 0.0)
    run_step(scheduler)
    scheduler.abort(0, "abort", 0.0)
    run_step(scheduler)
    assert log.supplies == [2, 1]


def test_atom_31_prompts_that_cannot_start_are_no_supply() -> None:
    for limits in (make_limits(max_num_seqs=1), make_limits(num_blocks=10)):
        log = SupplyLog()
        scheduler = Scheduler(limits, planner=log)
        for sequence_id in range(3):
            scheduler.submit(make_submission(sequence_id, 30), 0.0)
        run_step(scheduler)
        run_step(scheduler)
        assert log.supplies == [3, 1], "no slot, or no blocks, for those that wait"


def test_atom_31_a_twin_that_waits_for_its_prefix_is_no_supply() -> None:
    log = SupplyLog()
    scheduler = Scheduler(make_limits(), planner=log)
    for sequence_id in range(2):
        scheduler.submit(make_submission(sequence_id, list(range(1, 31))), 0.0)
    run_step(scheduler)
    run_step(scheduler)
    assert log.supplies == [2, 1]


def test_atom_30_asking_in_vain_is_no_step_of_the_window() -> None:
    log = SupplyLog()
    scheduler = Scheduler(make_limits(pipeline_depth=2), planner=log)
    scheduler.submit(make_submission(0, 5), 0.0)
    plan = scheduler.schedule(0.0)
    assert plan is not None
    for _ in range(20):  # its first token is in flight: nothing can run
        assert scheduler.schedule(0.0) is None
    assert log.supplies == [1, 0], "twenty times is no more than once"


def test_atom_34_dynamic_chunks_register_prefixes_and_start_from_the_hit() -> None:
    model = LatencyModel(
        constant_seconds=0.0,
        prefix_seconds_per_token=0.0,
        linear_seconds_per_token=0.0,
        attention_seconds_per_area=1.0,
    )
    settings = AtomSettings(budget_tokens=1024, smooth_factor=1.0, min_chunk_tokens=64)
    planner = AtomPlanner(settings)
    planner.model = model
    limits = make_limits(
        decode_step_tokens=1024,
        prefill_step_tokens=1024,
        max_model_len=4096,
        block_size=16,
        num_blocks=512,
    )
    scheduler = Scheduler(limits, planner=planner)
    prompt = [1 + index % 40 for index in range(2500)]
    scheduler.submit(make_submission(1, prompt, 1), 0.0)
    sizes = []
    while scheduler.has_work():
        plan, _ = run_step(scheduler)
        sizes.append(plan.rows[0].num_tokens)
    assert sizes[:2] == [1024, 384] and sum(sizes) == 2500
    scheduler.submit(make_submission(2, prompt[:1408] + [45] * 1000, 1), 0.0)
    plan, _ = run_step(scheduler)
    (row,) = plan.rows
    assert row.start == 1408, "every full block of the dynamic chunks was found"
    assert row.num_tokens == equal_latency_chunk(model, settings, 1408)
    assert finished(run_until_idle(scheduler))[2].num_cached_tokens == 1408
