"""Whether a fit of all stages is certain enough to plan with."""

import math
import random

from atom_lite.chunking.fit_robust import DecodeRow, PrefillRow
from atom_lite.chunking.fit_stages import MAX_STDERR, StageFit, StageRows, fit_stages
from atom_lite.chunking.latency_model import Chunk, LatencyModel
from atom_lite.chunking.planner import plan_limits
from atom_lite.chunking.refusal import FitRefused
from tests.unit.chunking.samples import SERVED, scaled

LIMITS = plan_limits(2048)


def rows(
    model: LatencyModel,
    *,
    noise: float = 0.03,
    pattern: tuple[int, ...] = (192, 768),
    tokens: int = 8192,
    prior: LatencyModel | None = None,
    seed: int = 0,
) -> StageRows:
    """A prompt's chunks, sizes in turn."""
    rng = random.Random(seed)
    prefills, position = [], 0
    while position < tokens:
        chunk = Chunk(position, min(pattern[len(prefills) % len(pattern)], tokens - position))
        seconds = model.chunk_seconds(*chunk) * max(rng.gauss(1.0, noise), 0.1)
        prefills.append(PrefillRow(*chunk, chunk.area, 0, 0, seconds))
        position += chunk.new_tokens
    return StageRows(tuple(prefills), (), prior)


def fitted(*stages: StageRows, longest: int = 8192) -> list[StageFit]:
    outcome = fit_stages(stages, LIMITS, longest)
    assert not isinstance(outcome, FitRefused), outcome.message
    return outcome


def refused(*stages: StageRows, longest: int = 8192) -> FitRefused:
    outcome = fit_stages(stages, LIMITS, longest)
    assert isinstance(outcome, FitRefused)
    return outcome


def test_every_stage_gets_its_model_and_how_well_a_planned_chunk_is_known() -> None:
    first, second = fitted(rows(SERVED), rows(scaled(SERVED, 1.3), seed=1))
    for stage, truth in ((first, SERVED), (second, scaled(SERVED, 1.3))):
        assert 0.0 < stage.quality.stderr < 0.05
        for chunk in (Chunk(0, 512), Chunk(4096, 512), Chunk(7000, 384)):
            ratio = stage.model.chunk_seconds(*chunk) / truth.chunk_seconds(*chunk)
            assert 0.93 < ratio < 1.07


def test_noise_that_leaves_planned_chunks_unknown_is_refused_with_what_is_missing() -> None:
    stages = [rows(SERVED, noise=0.3, tokens=6000), rows(SERVED, noise=0.3, tokens=6000, seed=1)]
    refusal = refused(*stages, longest=6000)
    assert refusal.gate == "uncertainty"
    assert f"not to {MAX_STDERR:.0%}" in refusal.message
    assert refusal.num_missing is not None
    assert 1 <= refusal.num_missing < 200


def test_what_was_never_seen_is_not_extrapolated_to() -> None:
    # Two sizes close together tell little about the much larger chunks of a much longer prompt.
    stage = rows(SERVED, noise=0.1, pattern=(128, 192), tokens=2500)
    assert refused(stage, longest=100_000).gate == "uncertainty"


def test_terms_that_stand_in_for_each_other_do_no_harm() -> None:
    # Prefix cost and attention cost grow together over these chunks; their sum is what is known.
    confused = LatencyModel.from_milliseconds(a=2.5e-5, b=0.015, c=3.0, gamma=0.02)
    (stage,) = fitted(rows(confused, noise=0.02, pattern=(384, 640)))
    for start in range(0, 8192, 512):
        ratio = stage.model.chunk_seconds(start, 512) / confused.chunk_seconds(start, 512)
        assert 0.94 < ratio < 1.06


def test_times_that_the_formula_does_not_describe_are_refused() -> None:
    rng = random.Random(0)
    stage = rows(SERVED)
    wild = tuple(
        row._replace(seconds=row.seconds * rng.choice((0.2, 5.0))) for row in stage.prefills
    )
    assert refused(stage._replace(prefills=wild)).gate in ("residual", "uncertainty")


def test_with_a_prior_one_chunk_size_is_enough() -> None:
    slower = scaled(SERVED, 1.4)
    (stage,) = fitted(rows(slower, pattern=(512,), prior=SERVED))
    assert stage.quality.stderr < 0.2
    assert 0.93 < stage.model.chunk_seconds(6000, 256) / slower.chunk_seconds(6000, 256) < 1.07


def test_times_that_no_solver_takes_are_refused_and_end_nothing() -> None:
    decodes = tuple(DecodeRow(count, 100 * count, math.nan) for count in range(1, 20))
    assert refused(rows(SERVED)._replace(decodes=decodes)).message
