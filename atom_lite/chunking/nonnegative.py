"""Least squares with coefficients that may not be negative, and a robust version of it.

Why here: the control plane has numpy but no scipy, and its problems have at most six columns.
Lawson and Hanson's active set solves them exactly in tens of microseconds. Pure.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]
Mask: TypeAlias = NDArray[np.bool_]

HUBER_TUNING = 1.345  # 95 % efficient under Gaussian noise
MAD_TO_SIGMA = 1.4826
LEAST_SIGMA = 1e-6  # of a relative residual; noiseless samples must not divide by zero
MAX_REWEIGHTINGS = 15
CONVERGED = 1e-5


class RobustSolution(NamedTuple):
    """Coefficients, the spread of the residuals, and the weighted rows that were solved last.

    `rows` are relative to their measurements and include the prior's; `sigma**2` times the inverse
    of `rows.T @ rows` is how uncertain the coefficients are.
    """

    coefficients: Array
    rows: Array
    sigma: float


def nonnegative_least_squares(design: Array, target: Array) -> Array:
    """The x >= 0 that minimises `|design @ x - target|`.

    Source: Lawson and Hanson, Solving Least Squares Problems, 1974, chapter 23.
    """
    scales = np.max(np.abs(design), axis=0)
    scales[scales == 0.0] = 1.0
    scaled = design / scales
    rows, columns = design.shape
    if rows > columns:
        # The same problem on a small square: what is lost of the residual is the same for all x.
        basis, scaled = np.linalg.qr(scaled)
        target = basis.T @ target
    tolerance = 1e-12 * max(float(np.abs(scaled.T @ target).max(initial=0.0)), 1e-300)
    solution = np.zeros(columns)
    passive = np.zeros(columns, dtype=bool)
    for _ in range(3 * columns):
        gradient = scaled.T @ (target - scaled @ solution)
        gradient[passive] = -np.inf
        entering = int(np.argmax(gradient))
        if gradient[entering] <= tolerance:
            break
        passive[entering] = True
        solution = _settle(scaled, target, solution, passive)
    result: Array = solution / scales
    return result


def _settle(scaled: Array, target: Array, solution: Array, passive: Mask) -> Array:
    """Solve on the passive columns; walk back to the border while one of them turns negative."""
    for _ in range(len(passive)):
        trial = np.zeros_like(solution)
        trial[passive] = np.linalg.lstsq(scaled[:, passive], target, rcond=None)[0]
        if np.all(trial[passive] > 0.0):
            return trial
        bad = passive & (trial <= 0.0)
        step = float(np.min(solution[bad] / (solution[bad] - trial[bad] + 1e-300)))
        solution = solution + step * (trial - solution)
        passive &= solution > 1e-15
        solution[~passive] = 0.0
    return solution


def robust_nonnegative(
    design: Array, measured: Array, prior: Array | None = None, prior_spread: float = 0.3
) -> RobustSolution:
    """Fit `design @ x` to positive `measured` on relative residuals, outliers weighed down.

    Iteratively reweighted least squares with Huber's weights. A row's residual is relative to its
    measurement, so that a long chunk does not outvote a hundred short ones.

    Args:
        design: [rows, columns].
        measured: [rows], all positive.
        prior: [columns], where to stay unless the rows say otherwise: chunk sizes picked by a model
            follow the prefix, and such rows alone cannot tell the terms apart.
        prior_spread: how far off the prior may be, as a fraction of it (one sigma).
    """
    relative = design / measured[:, None]
    weights = np.ones(len(measured))
    sigma = 0.1
    coefficients = np.zeros(design.shape[1])
    rows = relative
    for _ in range(MAX_REWEIGHTINGS):
        roots = np.sqrt(weights)
        rows, target = relative * roots[:, None], roots
        if prior is not None:
            anchor, pull = _prior_rows(relative, prior, sigma / prior_spread)
            rows, target = np.vstack((rows, anchor)), np.concatenate((target, pull))
        previous = coefficients
        coefficients = nonnegative_least_squares(rows, target)
        residual = relative @ coefficients - 1.0
        sigma = max(MAD_TO_SIGMA * float(np.median(np.abs(residual))), LEAST_SIGMA)
        weights = np.minimum(
            1.0, HUBER_TUNING * sigma / np.maximum(np.abs(residual), LEAST_SIGMA * HUBER_TUNING)
        )
        if np.allclose(coefficients, previous, rtol=CONVERGED, atol=0.0):
            break
    # Dividing by noisy measurements favours the small ones (4 % at 15 % noise): level the median.
    predicted = np.maximum(design @ coefficients, 1e-300)
    coefficients = coefficients * float(np.median(measured / predicted))
    return RobustSolution(coefficients, rows, sigma)


def _prior_rows(relative: Array, prior: Array, strength: float) -> tuple[Array, Array]:
    """One row per column that pulls it to its prior; a prior of 0 pulls towards no effect."""
    whole_effect = 1.0 / np.maximum(np.max(np.abs(relative), axis=0), 1e-300)
    unit = np.where(prior > 0.0, prior, whole_effect)
    return np.diag(strength / unit), np.where(prior > 0.0, strength, 0.0)
