"""One fit of all stages, and whether it is certain enough to plan with.

Certain where it counts: the candidate models plan the longest prompt that was seen, and the time of
the planned chunks must be known well enough. Not each term: over chunks of much the same size c and
b stand in for each other, over much the same prefixes gamma and a do, and the plan is the same.
(c off by a factor of two costs a prompt 2.5 % at most, a or b off by a fifth 1.1 %.)

A pure function of its arguments, so that it can run off the head's thread. A few milliseconds and
one plan search, twice where there is a model already.
"""

from __future__ import annotations

import math
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from atom_lite.chunking.cuts import Span
from atom_lite.chunking.fit_robust import DecodeRow, FitQuality, PrefillRow, fit_decode, fit_prefill
from atom_lite.chunking.latency_model import Chunk, LatencyModel
from atom_lite.chunking.plan_search import Pipeline, plan
from atom_lite.chunking.refusal import FitRefused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atom_lite.chunking.planner import PlanLimits

MUCH_BETTER = 1.25  # ratio of the spreads of two fits' residuals
MAX_STDERR = 0.10  # of a planned chunk's predicted time, relative, RMS over the plan


class StageRows(NamedTuple):
    """What a stage is fitted from; `prior` is its accepted model, None for the first fit."""

    prefills: tuple[PrefillRow, ...]
    decodes: tuple[DecodeRow, ...]
    prior: LatencyModel | None


class StageFit(NamedTuple):
    """What came out for a stage."""

    model: LatencyModel
    quality: FitQuality


def fit_stages(
    stages: Sequence[StageRows], limits: PlanLimits, longest_tokens: int
) -> list[StageFit] | FitRefused:
    """A model per stage, or why there is none.

    A refit is held by the model before. That model may be wrong in kind: the first one may be of
    rows from before and after the machine has changed. So a fit without it is tried too, and taken
    for a stage whose rows it describes much better.

    Args:
        stages: in order.
        limits: sizes that planned chunks keep to.
        longest_tokens: of the prompt that must be predicted well.
    """
    held = _fit_all(stages, limits, longest_tokens)
    if isinstance(held, FitRefused) or all(rows.prior is None for rows in stages):
        return held
    free = _fit_all([rows._replace(prior=None) for rows in stages], limits, longest_tokens)
    if isinstance(free, FitRefused):
        return held
    return [
        alone if MUCH_BETTER * alone.quality.sigma < fit.quality.sigma else fit
        for fit, alone in zip(held, free, strict=True)
    ]


def _fit_all(
    stages: Sequence[StageRows], limits: PlanLimits, longest_tokens: int
) -> list[StageFit] | FitRefused:
    try:
        fits = [fit_prefill(rows.prefills, fit_decode(rows.decodes), rows.prior) for rows in stages]
        chunks = _planned([fit.model for fit in fits], limits, longest_tokens)
        qualities = [fit.quality(chunks) for fit in fits]
        # With a prior nothing is worse known than before.
        if any(rows.prior is None for rows in stages):
            _require_certainty(qualities)
    except FitRefused as refused:
        return refused
    except ValueError as error:  # of the solver (LinAlgError) or of a model that cannot be
        return FitRefused("coefficients", f"the fit gives no latency model: {error}")
    return [StageFit(fit.model, quality) for fit, quality in zip(fits, qualities, strict=True)]


def _planned(models: Sequence[LatencyModel], limits: PlanLimits, tokens: int) -> list[Chunk]:
    """The chunks that these models would cut a prompt into."""
    pipeline = Pipeline(models=tuple(m.without_decodes() for m in models), limits=limits)
    sizes = plan(pipeline, Span(0, tokens)).sizes
    return [
        Chunk(start, size) for start, size in zip(accumulate(sizes, initial=0), sizes, strict=False)
    ]


def _require_certainty(qualities: Sequence[FitQuality]) -> None:
    worst = max(qualities, key=lambda quality: quality.stderr)
    if worst.stderr <= MAX_STDERR:
        return
    # The error falls with the root of the number of rows.
    missing = worst.num_rows * ((worst.stderr / MAX_STDERR) ** 2 - 1.0)
    raise FitRefused(
        "uncertainty",
        f"the time of a planned chunk is known to {worst.stderr:.1%}, not to {MAX_STDERR:.0%}, "
        f"after {worst.num_rows} steps: more or steadier timings are needed",
        num_missing=math.ceil(min(missing, 1e6)),
    )
