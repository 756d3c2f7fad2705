from itertools import combinations

import numpy as np
import pytest

from atom_lite.chunking.nonnegative import nonnegative_least_squares, robust_nonnegative


def exhaustive(design: np.ndarray, target: np.ndarray) -> float:
    """The least residual over all subsets of columns whose own solution is non-negative."""
    columns = range(design.shape[1])
    best = float(np.linalg.norm(target))
    for size in range(1, design.shape[1] + 1):
        for subset in combinations(columns, size):
            part = design[:, subset]
            solution = np.linalg.lstsq(part, target, rcond=None)[0]
            if np.all(solution >= 0.0):
                best = min(best, float(np.linalg.norm(part @ solution - target)))
    return best


@pytest.mark.parametrize("seed", range(60))
def test_active_set_finds_the_exhaustive_optimum(seed: int) -> None:
    rng = np.random.default_rng(seed)
    columns = int(rng.integers(1, 7))
    design = rng.normal(size=(20, columns)) * 10.0 ** rng.integers(-6, 6, size=columns)
    target = rng.normal(size=20)
    solution = nonnegative_least_squares(design, target)
    assert np.all(solution >= 0.0)
    residual = float(np.linalg.norm(design @ solution - target))
    assert residual <= exhaustive(design, target) * (1.0 + 1e-9)


def test_a_column_of_zeros_gets_no_weight() -> None:
    design = np.column_stack((np.zeros(5), np.ones(5)))
    assert nonnegative_least_squares(design, np.full(5, 2.0)).tolist() == [0.0, 2.0]


def test_collinear_columns_do_not_loop() -> None:
    design = np.column_stack((np.ones(5), np.ones(5)))
    solution = nonnegative_least_squares(design, np.full(5, 2.0))
    assert solution.sum() == pytest.approx(2.0)


def test_outliers_hardly_move_a_robust_fit() -> None:
    rng = np.random.default_rng(1)
    x = rng.uniform(1.0, 100.0, size=60)
    design = np.column_stack((np.ones(60), x))
    measured = 3.0 + 2.0 * x
    measured[::10] *= 60.0
    solution = robust_nonnegative(design, measured)
    assert solution.coefficients == pytest.approx([3.0, 2.0], rel=0.02)
    weights = solution.rows[::10, 1] / (x[::10] / measured[::10])  # their roots
    assert weights.max() ** 2 < 0.1


def test_a_prior_holds_what_the_rows_cannot_tell() -> None:
    design = np.ones((10, 2))  # only the sum of the two is measured
    solution = robust_nonnegative(design, np.full(10, 8.2), prior=np.asarray([2.0, 6.0]))
    assert solution.coefficients == pytest.approx([2.0, 6.2], rel=0.02)


def test_a_prior_yields_to_rows_that_can_tell() -> None:
    x = np.linspace(1.0, 100.0, 50)
    design = np.column_stack((np.ones(50), x))
    solution = robust_nonnegative(design, 3.0 + 2.0 * x, prior=np.asarray([30.0, 0.0]))
    assert solution.coefficients == pytest.approx([3.0, 2.0], rel=0.01)
