import random

from atom_lite.chunking.drift import DriftDetector


def steps_to_alarm(shift: float, *, sigma: float = 0.1, seed: int = 0, most: int = 5000) -> int:
    rng = random.Random(seed)
    detector = DriftDetector(sigma)
    for step in range(most):
        if detector.observe(shift * max(rng.gauss(1.0, sigma), 0.01), 1.0):
            return step
    return most


def test_noise_that_the_fit_knew_of_is_no_drift() -> None:
    assert all(steps_to_alarm(1.0, seed=seed) == 5000 for seed in range(5))


def test_a_lasting_shift_is_found_soon_either_way() -> None:
    for seed in range(5):
        assert steps_to_alarm(1.2, seed=seed) < 40
        assert steps_to_alarm(0.8, seed=seed) < 40


def test_stragglers_alone_are_no_alarm() -> None:
    detector = DriftDetector(0.05)
    for step in range(1000):
        assert not detector.observe(60.0 if step % 20 == 0 else 1.0, 1.0)


def test_times_that_cannot_be_compared_are_ignored() -> None:
    detector = DriftDetector(0.05)
    assert not any(detector.observe(0.0, 1.0) or detector.observe(1.0, 0.0) for _ in range(100))
