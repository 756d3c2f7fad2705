from __future__ import annotations

from atom_lite.chunking.atom_calibrator import AtomCalibrator
from atom_lite.chunking.calibrator import Calibrator
from atom_lite.chunking.controller import AtomController, FittedController, StaticController
from atom_lite.chunking.fit_robust import FitQuality
from atom_lite.chunking.latency_model import LatencyModel
from atom_lite.chunking.planner import ChunkRequest, plan_limits
from atom_lite.chunking.planners.atom import AtomPlanner, AtomSettings
from atom_lite.chunking.planners.fixed import FixedPlanner
from atom_lite.chunking.planners.makespan import MakespanPlanner
from atom_lite.engine.chunking_stats import chunking_stats

MODEL = LatencyModel.from_milliseconds(a=1e-5, b=0.5, c=5.0, gamma=0.01)
QUALITY = FitQuality(
    num_rows=40, median_relative_error=0.03, p90_relative_error=0.08, sigma=0.05, stderr=0.02
)


def test_an_installed_model_shows_its_terms_its_quality_and_the_last_plan() -> None:
    limits = plan_limits(2048)
    planner = MakespanPlanner(limits)
    calibrator = Calibrator(2, limits)
    controller = FittedController(planner, calibrator, limits, max_model_len=8192)
    controller.adopt([MODEL, MODEL], [QUALITY, None])
    request = ChunkRequest(
        sequence_id=1, prefix_tokens=0, remaining_tokens=4000, budget_tokens=2048
    )
    decision = planner.next_chunk(request)
    controller.report.count(decision)
    stats = chunking_stats(controller, "makespan", num_stages=2)
    assert (stats.policy, stats.num_stages, stats.state) == ("makespan", 2, "installed")
    assert stats.coefficients[1]["linear_seconds_per_token"] == 0.0005
    assert stats.fit_errors == [0.03, None]
    fit, unknown = stats.fits
    assert fit is not None
    assert fit["p90_relative_error"] == 0.08
    assert unknown is None
    assert stats.last_plan[0] == decision.tokens
    assert stats.last_plan_start == 0
    assert sum(stats.last_plan) == 4000
    assert stats.last_plan_seconds is not None
    assert stats.chunks_by_reason == {"model": 1}
    assert stats.chunk_tokens_by_reason == {"model": decision.tokens}
    assert sum(stats.chunk_sizes_by_reason["model"]) == 1


def test_atoms_one_model_stands_for_every_stage() -> None:
    settings = AtomSettings(
        budget_tokens=2048,
        smooth_factor=0.75,
        min_chunk_tokens=128,
        block_size=16,
        max_model_len=8192,
    )
    calibrator = AtomCalibrator(settings, num_stages=3)
    calibrator.model = MODEL
    stats = chunking_stats(AtomController(AtomPlanner(settings), calibrator), "atom", num_stages=3)
    assert len(stats.coefficients) == 3
    assert len(stats.models) == 1


def test_a_policy_that_learns_nothing_says_why() -> None:
    stats = chunking_stats(StaticController(FixedPlanner(), "because"), "fixed", num_stages=1)
    assert (stats.state, stats.reason) == ("off", "because")
    assert stats.coefficients == stats.fits == stats.last_plan == []
