"""ATOM's fit, bit for bit: unweighted least squares on medians, then gates.

b comes from attention-free forwards at startup and is pinned. From real prefills come a, gamma, c:

    measured - b*x = a*(2*L*x + x^2) + gamma*L + c

A first version of ATOM fitted all terms from attention-free forwards: a came out 2400 times too
low and the feature did nothing. So the attention terms come from forwards over a real prefix, at
two widely separated chunk sizes; at one size the area is affine in L and the terms are one.

Durations are in seconds here, in milliseconds at ATOM; every gate is a ratio, so nothing else
changes. Pure; runs in the head process. Source: ROCm/ATOM, dynamic_chunking.py.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from atom_lite.chunking.latency_model import MILLISECONDS_PER_SECOND, LatencyModel
from atom_lite.chunking.refusal import FitRefused

if TYPE_CHECKING:
    from collections.abc import Sequence

Array: TypeAlias = NDArray[np.float64]

MIN_PROFILE_SIZES = 8
MIN_PREFIXES = 3
MIN_CHUNK_SIZES = 2
MIN_SHAPES = MIN_PREFIXES * MIN_CHUNK_SIZES
MAX_SHAPES = 512
TIMINGS_PER_SHAPE = 4
MAX_RESIDUAL_FRACTION = 0.25
MAX_CONDITION = 100.0
MAX_STDERR_FRACTION = 0.05
ROUNDOFF_FACTOR = 64.0
ROUNDOFF_LEAST_SECONDS = 1.0 / MILLISECONDS_PER_SECOND  # ATOM: max(latency, 1.0) milliseconds


class StartupTerms(NamedTuple):
    """What attention-free forwards show: b is kept, c only stands in where its own fit fails."""

    linear_seconds_per_token: float
    constant_seconds: float


class ShapeTimings:
    """The last timings of each (chunk, prefix) shape; their median is what is fitted."""

    def __init__(self) -> None:
        self._timings: dict[tuple[int, int], deque[float]] = {}

    def add(self, prefix_tokens: int, chunk_tokens: int, seconds: float) -> bool:
        """Keep a timing; False where it is unusable or there are too many shapes already."""
        if chunk_tokens <= 0 or prefix_tokens < 0 or not math.isfinite(seconds) or seconds <= 0.0:
            return False
        shape = (chunk_tokens, prefix_tokens)
        if shape not in self._timings:
            if len(self._timings) >= MAX_SHAPES:
                return False
            self._timings[shape] = deque(maxlen=TIMINGS_PER_SHAPE)
        self._timings[shape].append(seconds)
        return True

    @property
    def num_shapes(self) -> int:
        """Distinct (chunk, prefix) pairs."""
        return len(self._timings)

    @property
    def num_prefixes(self) -> int:
        """Distinct prefix lengths."""
        return len({prefix for _, prefix in self._timings})

    @property
    def num_chunk_sizes(self) -> int:
        """Distinct chunk sizes."""
        return len({chunk for chunk, _ in self._timings})

    @property
    def is_diverse_enough(self) -> bool:
        """Whether a fit can be tried at all."""
        return (
            self.num_shapes >= MIN_SHAPES
            and self.num_prefixes >= MIN_PREFIXES
            and self.num_chunk_sizes >= MIN_CHUNK_SIZES
        )

    def columns(self) -> tuple[Array, Array, Array]:
        """Chunk sizes, prefixes and median seconds, one entry per shape."""
        shapes = sorted(self._timings)
        return (
            np.asarray([chunk for chunk, _ in shapes], dtype=np.float64),
            np.asarray([prefix for _, prefix in shapes], dtype=np.float64),
            np.asarray([np.median(self._timings[shape]) for shape in shapes], dtype=np.float64),
        )


def fit_startup(chunk_sizes: Sequence[int], seconds: Sequence[float]) -> StartupTerms:
    """Fit `t(x) = c + b*x` to the startup sweep.

    Raises:
        FitRefused: too few sizes, or a slope that is not positive; the feature stays off.
    """
    if len(chunk_sizes) < MIN_PROFILE_SIZES:
        raise FitRefused(
            "samples",
            f"Dynamic chunking needs at least {MIN_PROFILE_SIZES} latency profiling samples, "
            f"got {len(chunk_sizes)}",
        )
    chunks = np.asarray(chunk_sizes, dtype=np.float64)
    latencies = np.asarray(seconds, dtype=np.float64)
    if chunks.shape != latencies.shape or not np.all(np.isfinite(latencies)):
        raise FitRefused("samples", "Dynamic chunking profiling needs one finite time per size")
    if np.unique(chunks).size < 2:
        raise FitRefused(
            "samples", "Dynamic chunking needs at least 2 distinct profiling chunk sizes"
        )
    linear, constant = _scaled_lstsq(np.column_stack((chunks, np.ones_like(chunks))), latencies)
    if linear <= 0.0:
        raise FitRefused(
            "slope",
            "Dynamic chunking requires a positive linear latency coefficient, got "
            f"b={linear * MILLISECONDS_PER_SECOND:.3e}; the profiling window is dominated by "
            "per-forward overhead",
        )
    return StartupTerms(float(linear), max(float(constant), 0.0))


def fit_attention(timings: ShapeTimings, startup: StartupTerms) -> LatencyModel:
    """Fit a, gamma and c with b pinned, and pass every gate but the useful one.

    Raises:
        FitRefused: a gate said no; the calibrator counts it and tries again on fresh timings.
    """
    chunks, prefixes, latencies = timings.columns()
    terms = _fit_terms(chunks, prefixes, latencies, startup)
    _require_growth(terms, chunks, prefixes, latencies)
    model = LatencyModel(
        constant_seconds=terms.constant,
        prefix_seconds_per_token=terms.prefix,
        linear_seconds_per_token=startup.linear_seconds_per_token,
        attention_seconds_per_area=terms.attention,
    )
    area = _area(chunks, prefixes)
    modelled = (
        terms.constant
        + terms.prefix * prefixes
        + (terms.attention * area + startup.linear_seconds_per_token * chunks)
    )
    error = modelled - latencies
    mean = float(np.mean(latencies))
    _require_small_residual(error, mean)
    design = _design(chunks, prefixes, terms.with_prefix, terms.free_constant)
    _require_certainty(design, error, mean)
    return model


class _Terms(NamedTuple):
    """Fitted terms, and which columns made them."""

    attention: float
    prefix: float
    constant: float
    with_prefix: bool
    free_constant: bool


def _area(chunks: Array, prefixes: Array) -> Array:
    area: Array = 2.0 * prefixes * chunks + chunks * chunks
    return area


def _design(chunks: Array, prefixes: Array, with_prefix: bool, with_constant: bool) -> Array:
    columns = [_area(chunks, prefixes)]
    if with_prefix:
        columns.append(prefixes)
    if with_constant:
        columns.append(np.ones_like(chunks))
    return np.column_stack(columns)


def _scale(design: Array) -> tuple[Array, Array]:
    """Columns with maximum 1 and the scales; areas of 1e10 beside ones look rank deficient."""
    scales = np.max(np.abs(design), axis=0)
    if not np.all(np.isfinite(scales)) or np.any(scales <= 0.0):
        raise FitRefused("samples", "Dynamic chunking latency samples have a degenerate column")
    return design / scales, scales


def _scaled_lstsq(design: Array, target: Array) -> Array:
    scaled, scales = _scale(design)
    solution, _, rank, _ = np.linalg.lstsq(scaled, target, rcond=None)
    if rank < design.shape[1]:
        raise FitRefused("condition", "Dynamic chunking latency samples are rank deficient")
    unscaled: Array = solution / scales
    return unscaled


def _fit_terms(chunks: Array, prefixes: Array, latencies: Array, startup: StartupTerms) -> _Terms:
    overhead = latencies - startup.linear_seconds_per_token * chunks

    def solve(free_constant: bool, with_prefix: bool) -> _Terms:
        design = _design(chunks, prefixes, with_prefix, free_constant)
        target = overhead if free_constant else overhead - startup.constant_seconds
        values = [float(value) for value in _scaled_lstsq(design, target)]
        return _Terms(
            attention=values[0],
            prefix=values[1] if with_prefix else 0.0,
            constant=values[-1] if free_constant else startup.constant_seconds,
            with_prefix=with_prefix,
            free_constant=free_constant,
        )

    terms = solve(True, True)
    if terms.constant < 0.0:
        # A launch that costs less than nothing would drag the terms fitted beside it.
        terms = solve(False, True)
    if terms.prefix < 0.0:
        # Refit, not clamp: a clamp would leave `a` with the bias of its negative partner.
        terms = solve(terms.free_constant, False)
    if terms.constant < 0.0:
        terms = solve(False, terms.with_prefix)
    return terms


def _require_growth(terms: _Terms, chunks: Array, prefixes: Array, latencies: Array) -> None:
    span = terms.attention * float(np.ptp(_area(chunks, prefixes)))
    largest = max(float(np.max(np.abs(latencies))), ROUNDOFF_LEAST_SECONDS)
    if span <= ROUNDOFF_FACTOR * float(np.finfo(np.float64).eps) * largest:
        raise FitRefused(
            "growth",
            "Dynamic chunking calibration measured no attention growth "
            f"(a={terms.attention * MILLISECONDS_PER_SECOND:.3e}): chunk cost does not rise with "
            "attention area, so equal-latency chunking has nothing to equalize",
        )


def _require_small_residual(error: Array, mean: float) -> None:
    rms = float(np.sqrt(np.mean(np.square(error))))
    if rms > MAX_RESIDUAL_FRACTION * mean:
        raise FitRefused(
            "residual",
            f"Dynamic chunking calibration residual is {rms * MILLISECONDS_PER_SECOND:.1f}ms "
            f"against a {mean * MILLISECONDS_PER_SECOND:.1f}ms mean, above the "
            f"{MAX_RESIDUAL_FRACTION:.0%} bound: the samples are not described by the chunk "
            "latency model",
        )


def _require_certainty(design: Array, error: Array, mean: float) -> None:
    """Gates on the design matrix that the accepted fit was solved on."""
    scaled, _ = _scale(design)
    condition = float(np.linalg.cond(scaled))
    if not math.isfinite(condition) or condition > MAX_CONDITION:
        raise FitRefused(
            "condition",
            f"Dynamic chunking calibration design condition is {condition:.1f}, above the "
            f"{MAX_CONDITION:.0f} bound: sampled chunk sizes do not separate the latency terms",
        )
    degrees_of_freedom = design.shape[0] - design.shape[1]
    if degrees_of_freedom <= 0:
        raise FitRefused(
            "uncertainty",
            "Dynamic chunking calibration has too few samples to estimate fit uncertainty",
        )
    variance = float(error @ error) / degrees_of_freedom
    covariance = variance * np.linalg.inv(scaled.T @ scaled)
    prediction_variance = np.einsum("ij,jk,ik->i", scaled, covariance, scaled)
    uncertainty = float(np.sqrt(np.maximum(prediction_variance, 0.0)).max()) / mean
    if uncertainty > MAX_STDERR_FRACTION:
        raise FitRefused(
            "uncertainty",
            f"Dynamic chunking calibration prediction uncertainty is {uncertainty:.1%}, above the "
            f"{MAX_STDERR_FRACTION:.0%} bound: more stable timing samples are required",
        )
