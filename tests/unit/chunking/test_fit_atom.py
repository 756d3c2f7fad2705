import random
from collections.abc import Callable, Iterable

import numpy as np
import pytest

from atom_lite.chunking.fit_atom import (
    MAX_SHAPES,
    ShapeTimings,
    StartupTerms,
    fit_attention,
    fit_startup,
)
from atom_lite.chunking.latency_model import Chunk, LatencyModel
from atom_lite.chunking.planners.atom import AtomSettings, equal_latency_chunk
from atom_lite.chunking.refusal import FitRefused
from tests.unit.chunking.samples import SERVED, Timing, fixed_chunks, noisy

SWEEP = (512, 2048)
TRUE_STARTUP = StartupTerms(SERVED.linear_seconds_per_token, SERVED.constant_seconds)


def serve(
    timings: ShapeTimings,
    *,
    prompt: int = 8192,
    sizes: Iterable[int] = SWEEP,
    seconds: Timing = SERVED.chunk_seconds,
) -> ShapeTimings:
    """One prompt per chunk size, as the sweep serves them."""
    for size in sizes:
        for prefix, new in fixed_chunks(prompt, size):
            timings.add(prefix, new, seconds(prefix, new))
    return timings


def refused(fit: Callable[[], object]) -> str:
    with pytest.raises(FitRefused) as caught:
        fit()
    return caught.value.gate


def letters(model: LatencyModel) -> tuple[float, float, float, float]:
    return (
        model.attention_seconds_per_area,
        model.linear_seconds_per_token,
        model.constant_seconds,
        model.prefix_seconds_per_token,
    )


def test_atom_1_startup_fit_recovers_b_and_c() -> None:
    sizes = list(range(64, 64 * 25, 64))
    terms = fit_startup(sizes, [0.003 + 1.5e-5 * size for size in sizes])
    assert terms == pytest.approx((1.5e-5, 0.003))


def test_atom_1_a_negative_startup_constant_is_taken_as_zero() -> None:
    sizes = list(range(64, 64 * 25, 64))
    assert fit_startup(sizes, [-1e-4 + 1.5e-5 * size for size in sizes]).constant_seconds == 0.0


@pytest.mark.parametrize("slope", [0.0, -1e-6])
def test_atom_2_a_slope_that_is_not_positive_is_refused(slope: float) -> None:
    sizes = list(range(64, 64 * 25, 64))
    seconds = [0.01 + slope * size for size in sizes]
    # Exactly flat timings fit a slope of rounding noise; a real plateau leans either way.
    seconds[0] += 1e-9
    assert refused(lambda: fit_startup(sizes, seconds)) == "slope"


def test_atom_3_fewer_than_eight_sizes_are_refused() -> None:
    sizes = list(range(64, 64 * 8, 64))
    assert refused(lambda: fit_startup(sizes, [0.1] * 7)) == "samples"


def test_startup_samples_must_be_finite_and_differ() -> None:
    assert refused(lambda: fit_startup([64] * 8, [0.1] * 8)) == "samples"
    assert refused(lambda: fit_startup(range(64, 576, 64), [0.1] * 7 + [np.nan])) == "samples"


def test_atom_4_the_two_size_sweep_recovers_a_gamma_and_c() -> None:
    model = fit_attention(serve(ShapeTimings()), TRUE_STARTUP)
    assert letters(model) == pytest.approx(letters(SERVED), rel=1e-6)


def test_atom_5_one_chunk_size_is_not_enough() -> None:
    timings = serve(ShapeTimings(), sizes=(1024,))
    assert timings.num_shapes == 8
    assert not timings.is_diverse_enough


def test_atom_6_a_startup_constant_three_times_too_high_is_corrected() -> None:
    startup = TRUE_STARTUP._replace(constant_seconds=3 * SERVED.constant_seconds)
    model = fit_attention(serve(ShapeTimings()), startup)
    assert model.constant_seconds == pytest.approx(SERVED.constant_seconds, rel=1e-6)
    assert model.prefix_seconds_per_token == pytest.approx(SERVED.prefix_seconds_per_token)


@pytest.mark.parametrize("factor", [0.93, 1.07])
def test_atom_7_with_b_off_by_seven_percent_chunks_stay_within_five(factor: float) -> None:
    startup = TRUE_STARTUP._replace(
        linear_seconds_per_token=SERVED.linear_seconds_per_token * factor
    )
    model = fit_attention(serve(ShapeTimings()), startup)
    settings = AtomSettings(budget_tokens=2048, smooth_factor=1.0, min_chunk_tokens=64)
    for prefix in range(2048, 8192, 1024):
        fitted = equal_latency_chunk(model, settings, prefix)
        true = equal_latency_chunk(SERVED, settings, prefix)
        assert fitted is not None and true is not None
        # One alignment step is 64 tokens; the rest must be the five percent.
        assert abs(fitted - true) <= max(0.05 * true, 64)


def test_atom_8_fewer_than_three_prefixes_wait() -> None:
    timings = ShapeTimings()
    for prefix in (0, 2048):
        for new in (256, 512, 1024, 2048):
            timings.add(prefix, new, 0.1)
    assert timings.num_shapes == 8
    assert not timings.is_diverse_enough
    timings.add(4096, 256, 0.1)
    assert timings.is_diverse_enough


def test_atom_9_an_ill_conditioned_grid_is_refused() -> None:
    timings = ShapeTimings()
    for new in (2032, 2048):
        for prefix in range(0, 4 * new, new):  # full chunks only: a tail would be a third size
            timings.add(prefix, new, SERVED.chunk_seconds(prefix, new))
    assert refused(lambda: fit_attention(timings, TRUE_STARTUP)) == "condition"


def test_atom_10_noise_on_too_few_samples_is_refused_and_repeats_make_it_pass() -> None:
    timings = ShapeTimings()
    shapes = [(prefix, new) for new in (512, 2048) for prefix in (0, 2048, 4096)]
    signs = (1, -1, 1, -1, 1, -1)

    def measure(flip: int) -> None:
        for (prefix, new), sign in zip(shapes, signs, strict=True):
            noise = 1.0 + 0.06 * sign * flip
            timings.add(prefix, new, SERVED.chunk_seconds(prefix, new) * noise)

    measure(+1)
    assert timings.is_diverse_enough
    assert refused(lambda: fit_attention(timings, TRUE_STARTUP)) == "uncertainty"
    measure(-1)  # the same noise the other way round: medians meet the truth
    model = fit_attention(timings, TRUE_STARTUP)
    assert letters(model) == pytest.approx(letters(SERVED), rel=1e-6)


def test_atom_14_cost_that_falls_with_the_area_is_refused() -> None:
    def seconds(prefix: int, new: int) -> float:
        return 10.0 + 1.5e-5 * new - 1e-9 * Chunk(prefix, new).area

    timings = serve(ShapeTimings(), seconds=seconds)
    assert refused(lambda: fit_attention(timings, TRUE_STARTUP)) == "growth"


def test_atom_15_no_attention_growth_is_refused() -> None:
    flat = LatencyModel.from_milliseconds(a=0.0, b=0.015, c=3.0, gamma=0.002)
    timings = serve(ShapeTimings(), seconds=flat.chunk_seconds)
    assert refused(lambda: fit_attention(timings, TRUE_STARTUP)) == "growth"


def test_atom_16_a_negative_gamma_is_refitted_without_it() -> None:
    def seconds(prefix: int, new: int) -> float:
        return SERVED.chunk_seconds(prefix, new) - 1.2 * SERVED.prefix_seconds_per_token * prefix

    timings = serve(ShapeTimings(), seconds=seconds)
    model = fit_attention(timings, TRUE_STARTUP)
    assert model.prefix_seconds_per_token == 0.0
    # Refitted, not clamped: the area term has taken up the missing prefix cost.
    assert model.attention_seconds_per_area < SERVED.attention_seconds_per_area


def test_atom_17_a_negative_constant_is_refitted_with_the_startup_one() -> None:
    def seconds(prefix: int, new: int) -> float:
        return SERVED.chunk_seconds(prefix, new) - 1.2 * SERVED.constant_seconds

    timings = serve(ShapeTimings(), seconds=seconds)
    model = fit_attention(timings, TRUE_STARTUP)
    assert model.constant_seconds == TRUE_STARTUP.constant_seconds


def test_a_constant_that_turns_negative_without_gamma_is_refitted_too() -> None:
    def seconds(prefix: int, new: int) -> float:
        area = Chunk(prefix, new).area
        return 1.5e-5 * new + 4e-8 * area - 3e-5 * prefix * (prefix > 4096) + 0.02 * (prefix == 0)

    timings = serve(ShapeTimings(), seconds=seconds)
    try:
        model = fit_attention(timings, TRUE_STARTUP)
    except FitRefused as no:
        assert no.gate in ("residual", "uncertainty", "growth")
    else:
        assert model.constant_seconds >= 0.0


def test_atom_19_the_median_of_the_last_four_timings_counts() -> None:
    timings = ShapeTimings()
    for seconds in (9.0, 9.0, 1.0, 2.0, 3.0, 100.0):
        timings.add(0, 64, seconds)
    _, _, medians = timings.columns()
    assert medians.tolist() == [2.5]


def test_atom_20_a_residual_over_a_quarter_is_refused() -> None:
    rng = random.Random(5)

    def seconds(prefix: int, new: int) -> float:
        return SERVED.chunk_seconds(prefix, new) * rng.choice((0.3, 2.0))

    timings = serve(ShapeTimings(), prompt=16384, sizes=(512, 1024, 2048), seconds=seconds)
    assert refused(lambda: fit_attention(timings, TRUE_STARTUP)) == "residual"


@pytest.mark.parametrize(
    ("prefix", "new", "seconds"),
    [(0, 0, 1.0), (-1, 64, 1.0), (0, 64, 0.0), (0, 64, -1.0), (0, 64, float("nan"))],
)
def test_unusable_timings_are_dropped(prefix: int, new: int, seconds: float) -> None:
    timings = ShapeTimings()
    assert not timings.add(prefix, new, seconds)
    assert timings.num_shapes == 0


def test_at_most_512_shapes_are_kept_and_known_ones_still_refined() -> None:
    timings = ShapeTimings()
    for index in range(MAX_SHAPES):
        assert timings.add(index, 64, 1.0)
    assert not timings.add(MAX_SHAPES, 64, 1.0)
    assert timings.add(0, 64, 1.0)
    assert timings.num_shapes == MAX_SHAPES == 512


def test_units_do_not_change_the_fit() -> None:
    # ATOM fits milliseconds. The gates are ratios, so seconds give the same decisions and chunks.
    model = fit_attention(serve(ShapeTimings(), seconds=noisy(SERVED, 0.02)), TRUE_STARTUP)
    same_noise = noisy(SERVED, 0.02)
    timings = serve(ShapeTimings(), seconds=lambda p, n: 1000.0 * same_noise(p, n))
    startup = StartupTerms(*(1000.0 * term for term in TRUE_STARTUP))
    in_milliseconds = fit_attention(timings, startup)
    assert letters(in_milliseconds) == pytest.approx([1000.0 * x for x in letters(model)], rel=1e-9)
