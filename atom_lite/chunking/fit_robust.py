"""Our fit: robust non-negative least squares on the raw rows of real steps.

Where ATOM needs a sweep of pure prefills, this takes what serving brings, decodes included. Prefill
terms come from prefill-dominated steps, d0 and d1 from decode-only steps. A column that the rows
cannot tell apart from the others is left out or held by a prior, and the fit says how good it is:
how far off the rows are from it, and how far off it may be itself where it is going to be used
(`PrefillFit.stderr`). Single terms may be uncertain for ever without any harm: a plan hardly
changes while one term takes over from another.

    prefill row   [1, sum L, sum x, sum area]     what is left after the decode terms
    decode row    [1, D, K]                       a device that replays graphs has none: then D
                                                  and K join the prefill rows' columns
Pure and bounded: at most a thousand rows, a few milliseconds. Runs in the head process.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from atom_lite.chunking.latency_model import LatencyModel
from atom_lite.chunking.nonnegative import RobustSolution, robust_nonnegative
from atom_lite.chunking.refusal import FitRefused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atom_lite.chunking.latency_model import Chunk

Array: TypeAlias = NDArray[np.float64]

MIN_PREFILL_ROWS = 12
MIN_PREFIXES = 3
MIN_CHUNK_SIZES = 2
MIN_DECODE_ROWS = 8
MIN_RIDING_ROWS = 16  # prefill steps with decodes, and as many without
MIN_SIZE_RATIO = 1.5  # between the largest and the smallest chunk
MAX_RELATIVE_ERROR = 0.30  # median; 15 % noise passes, a formula that does not fit does not
UNKNOWN = 1e-9  # information about a direction that no row shows, in units of a whole row
MIN_COLUMN_SPREAD = 1.2  # largest over smallest; under it a decode column is the constant's twin


class PrefillRow(NamedTuple):
    """One prefill-dominated step on one stage."""

    prefix_tokens: float
    new_tokens: float
    area: float
    decode_rows: float
    decode_context_tokens: float
    seconds: float


class DecodeRow(NamedTuple):
    """One decode-only step on one stage."""

    decode_rows: float
    decode_context_tokens: float
    seconds: float


class DecodeTerms(NamedTuple):
    """d0 and d1."""

    row_seconds: float = 0.0
    context_seconds_per_token: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FitQuality:
    """How well an accepted model describes the rows it was fitted to.

    Attributes:
        num_rows: prefill rows.
        median_relative_error: half of the rows are predicted better than this.
        p90_relative_error: nine in ten are.
        sigma: robust spread of the relative residual.
        stderr: one-sigma uncertainty of the prediction of a planned chunk, relative.
    """

    num_rows: int
    median_relative_error: float
    p90_relative_error: float
    sigma: float
    stderr: float

    @property
    def drift_sigma(self) -> float:
        """What the next measurement may be off by, relative: noise and the model's own doubt."""
        return math.hypot(self.sigma, self.stderr)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PrefillFit:
    """A fit that describes its rows; whether it is certain enough is for its user to ask.

    Attributes:
        model: all terms, decodes included.
        num_rows: prefill rows that it was fitted to.
        median_relative_error: half of the rows are predicted better than this.
        p90_relative_error: nine in ten are.
        sigma: robust spread of the relative residual.
        covariance: [4, 4], of c, gamma, b and a as the rows determine them.
    """

    model: LatencyModel
    num_rows: int
    median_relative_error: float
    p90_relative_error: float
    sigma: float
    covariance: Array

    def stderr(self, chunks: Sequence[Chunk]) -> float:
        """One-sigma uncertainty of the predicted time of such chunks, relative (RMS over them)."""
        rows = np.asarray(
            [(1.0, chunk.prefix_tokens, chunk.new_tokens, chunk.area) for chunk in chunks]
        )
        predicted = np.asarray([self.model.chunk_seconds(*chunk) for chunk in chunks])
        variance = np.einsum("ij,jk,ik->i", rows, self.covariance, rows)
        return float(np.sqrt(np.mean(np.maximum(variance, 0.0) / predicted**2)))

    def quality(self, chunks: Sequence[Chunk]) -> FitQuality:
        """The numbers to keep, for a plan of these chunks."""
        return FitQuality(
            num_rows=self.num_rows,
            median_relative_error=self.median_relative_error,
            p90_relative_error=self.p90_relative_error,
            sigma=self.sigma,
            stderr=self.stderr(chunks),
        )


def fit_decode(rows: Sequence[DecodeRow]) -> DecodeTerms | None:
    """d0 and d1 from decode-only steps; a term that the rows do not show is 0.

    Returns:
        None where there are too few such steps, as with a device that replays graphs for them.
    """
    if len(rows) < MIN_DECODE_ROWS:
        return None
    table = np.asarray(rows, dtype=np.float64)
    design, measured = table[:, :2], table[:, 2]
    kept = [column for column in (0, 1) if _varies(design[:, column])]
    if len(kept) == 2 and not _separable(design):
        kept = [1]
    if not kept:
        return DecodeTerms()
    columns = np.column_stack((np.ones(len(rows)), design[:, kept]))
    coefficients = robust_nonnegative(columns, measured).coefficients
    terms = [0.0, 0.0]
    for index, column in enumerate(kept):
        terms[column] = float(coefficients[1 + index])
    return DecodeTerms(*terms)


def fit_prefill(
    rows: Sequence[PrefillRow], decode: DecodeTerms | None, prior: LatencyModel | None = None
) -> PrefillFit:
    """c, gamma, b and a from prefill-dominated steps.

    Args:
        rows: at most a thousand.
        decode: taken off each row before the fit, and kept in the model. None fits them to these
            rows too, as far as decodes ride along in enough of them.
        prior: an accepted model of the same stage. With it rows need not be diverse: what they
            cannot tell stays where it was, scaled by how much slower everything has become.

    Raises:
        FitRefused: the reason; the calibrator backs off and tries again.
    """
    table = np.asarray(rows, dtype=np.float64).reshape(-1, len(PrefillRow._fields))
    if prior is None:
        _require_diversity(table)
    elif len(table) < MIN_PREFILL_ROWS:
        raise FitRefused("samples", f"{len(table)} prefill steps, {MIN_PREFILL_ROWS} are needed")
    decode = decode or _riding_decodes(table)
    prefix, new, area, num_rows, context, seconds = table.T
    rest = seconds - decode.row_seconds * num_rows - decode.context_seconds_per_token * context
    # A noisy step may take less than its decodes alone should; it says nothing about prefill.
    usable = rest > 0.1 * seconds
    if np.count_nonzero(usable) < MIN_PREFILL_ROWS:
        raise FitRefused("residual", "decode terms explain more than the whole of most steps")
    design = np.column_stack((np.ones_like(new), prefix, new, area))[usable]
    measured = rest[usable]
    anchor = None if prior is None else _scaled_prior(prior, design, measured)
    solution = robust_nonnegative(design, measured, anchor)
    constant, per_prefix, linear, attention = (float(x) for x in solution.coefficients)
    if linear + attention <= 0.0:
        raise FitRefused("slope", "step times do not rise with the number of new tokens")
    model = LatencyModel(
        constant_seconds=constant,
        prefix_seconds_per_token=per_prefix,
        linear_seconds_per_token=linear,
        attention_seconds_per_area=attention,
    )
    return _described(model.with_decodes(*decode), design, measured, solution)


def _riding_decodes(table: Array) -> DecodeTerms:
    """d0 and d1 from the decodes that ride along with prefills, fitted with everything else."""
    prefix, new, area, num_rows, context, seconds = table.T
    with_decodes = int(np.count_nonzero(num_rows))
    if min(with_decodes, len(table) - with_decodes) < MIN_RIDING_ROWS:
        return DecodeTerms()
    design = np.column_stack((np.ones_like(new), prefix, new, area, num_rows, context))
    if not _separable(design[:, 4:]):
        design[:, 4] = 0.0
    coefficients = robust_nonnegative(design, seconds).coefficients
    return DecodeTerms(float(coefficients[4]), float(coefficients[5]))


def _require_diversity(table: Array) -> None:
    if len(table) < MIN_PREFILL_ROWS:
        raise FitRefused("samples", f"{len(table)} prefill steps, {MIN_PREFILL_ROWS} are needed")
    num_prefixes = np.unique(table[:, 0]).size
    if num_prefixes < MIN_PREFIXES:
        raise FitRefused("samples", f"{num_prefixes} distinct prefixes, {MIN_PREFIXES} are needed")
    sizes = table[:, 1]
    if np.unique(sizes).size < MIN_CHUNK_SIZES or sizes.max() < MIN_SIZE_RATIO * sizes.min():
        raise FitRefused(
            "samples",
            f"chunk sizes from {sizes.min():.0f} to {sizes.max():.0f} tokens, the largest must be "
            f"{MIN_SIZE_RATIO} times the smallest",
        )


def _scaled_prior(prior: LatencyModel, design: Array, measured: Array) -> Array:
    """The prior's prefill terms, times the median ratio of measured to predicted."""
    terms = np.asarray(
        (
            prior.constant_seconds,
            prior.prefix_seconds_per_token,
            prior.linear_seconds_per_token,
            prior.attention_seconds_per_area,
        )
    )
    scaled: Array = terms * float(np.median(measured / (design @ terms)))
    return scaled


def _described(
    model: LatencyModel, design: Array, measured: Array, solution: RobustSolution
) -> PrefillFit:
    """The fit with its errors, refused where it does not describe its rows."""
    relative = design / measured[:, None]
    error = np.abs(relative @ solution.coefficients - 1.0)
    median = float(np.median(error))
    if median > MAX_RELATIVE_ERROR:
        raise FitRefused(
            "residual",
            f"median error is {median:.1%} of the step, above {MAX_RELATIVE_ERROR:.0%}: the "
            "latency model does not describe these steps",
        )
    rows, columns = design.shape
    # A fit lies closer to its own rows than to the next ones.
    sigma = solution.sigma * rows / max(rows - columns, 1)
    return PrefillFit(
        model=model,
        num_rows=rows,
        median_relative_error=median,
        p90_relative_error=float(np.quantile(error, 0.9)),
        sigma=sigma,
        covariance=_covariance(solution.rows, sigma),
    )


def _covariance(rows: Array, sigma: float) -> Array:
    """Of the coefficients; those held at zero count as if they were free."""
    scales = np.maximum(np.max(np.abs(rows), axis=0), 1e-300)
    scaled = rows / scales
    # What the rows say nothing about is uncertain without bound, not certain.
    information = scaled.T @ scaled + UNKNOWN * np.eye(rows.shape[1])
    covariance: Array = sigma**2 * np.linalg.inv(information) / np.outer(scales, scales)
    return covariance


def _varies(column: Array) -> bool:
    return bool(column.max() >= MIN_COLUMN_SPREAD * max(column.min(), 1.0))


def _separable(design: Array) -> bool:
    """Whether D and K move apart: K = D * (one context length) is one column, not two."""
    centered = design - design.mean(axis=0)
    norms = np.linalg.norm(centered, axis=0)
    return bool(abs(centered[:, 0] @ centered[:, 1]) < 0.98 * norms[0] * norms[1])
