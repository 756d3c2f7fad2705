import numpy as np

from atom_lite.worker.randomness import uniforms


def test_a_uniform_depends_on_its_seed_and_index_only():
    together = uniforms([5, 6, 5], [0, 1, 2])
    alone = [uniforms([5], [0])[0], uniforms([6], [1])[0], uniforms([5], [2])[0]]
    assert together.tolist() == alone


def test_stream_is_splitmix64_from_the_hashed_seed():
    mask = (1 << 64) - 1

    def mix(word):
        word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & mask
        word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & mask
        return word ^ (word >> 31)

    # Published first value of SplitMix64 with seed 0: this pins the finalizer.
    assert mix(0x9E3779B97F4A7C15) == 0xE220A8397B1DCDAF
    gamma = 0x9E3779B97F4A7C15
    for seed, index in [(0, 0), (1, 7), (-3, 2), (1 << 70, 100)]:
        start = mix(((seed & mask) + gamma) & mask)
        word = mix((start + (index + 1) * gamma) & mask)
        assert uniforms([seed], [index])[0] == (word >> 11) / 2**53


def test_uniforms_are_even_over_indices_and_over_seeds():
    count = 20000
    for numbers in (
        uniforms([1] * count, range(count)),
        uniforms(range(count), [0] * count),
    ):
        assert numbers.min() >= 0.0
        assert numbers.max() < 1.0
        observed = np.bincount((numbers * 100).astype(int), minlength=100)
        chi_square = ((observed - count / 100) ** 2 / (count / 100)).sum()
        assert chi_square < 148  # 99.9 % quantile with 99 degrees of freedom
        assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.03
