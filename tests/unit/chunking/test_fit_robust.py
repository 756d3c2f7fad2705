import random
import time
from collections.abc import Callable, Iterable

import pytest

from atom_lite.chunking.fit_robust import (
    DecodeRow,
    DecodeTerms,
    PrefillRow,
    fit_decode,
    fit_prefill,
)
from atom_lite.chunking.latency_model import Chunk, LatencyModel
from atom_lite.chunking.refusal import FitRefused
from tests.unit.chunking.samples import KIMI, SERVED, Timing, fixed_chunks, noisy, scaled

NO_DECODES = DecodeTerms()


def rows_of(
    seconds: Timing = SERVED.chunk_seconds,
    sizes: Iterable[int] = (512, 1024, 2048),
    prompt: int = 8192,
) -> list[PrefillRow]:
    return [
        PrefillRow(c.prefix_tokens, c.new_tokens, c.area, 0, 0, seconds(*c))
        for size in sizes
        for c in fixed_chunks(prompt, size)
    ]


def refused(fit: Callable[[], object]) -> str:
    with pytest.raises(FitRefused) as caught:
        fit()
    return caught.value.gate


def test_noiseless_rows_give_the_model_back() -> None:
    fit = fit_prefill(rows_of(), NO_DECODES)
    assert fit.model.describe() == SERVED.describe()
    assert fit.median_relative_error < 1e-6
    assert fit.num_rows == len(rows_of())


def test_no_term_turns_negative() -> None:
    truth = LatencyModel.from_milliseconds(a=2e-5, b=0.01, c=0.0)
    fit = fit_prefill(rows_of(noisy(truth, 0.1)), NO_DECODES)
    assert fit.model.constant_seconds >= 0.0
    assert fit.model.prefix_seconds_per_token >= 0.0


@pytest.mark.parametrize("seed", range(5))
def test_noise_of_15_percent_still_predicts_within_10(seed: int) -> None:
    rng = random.Random(seed)
    rows = []
    for _ in range(4):
        rows += rows_of(lambda p, n: SERVED.chunk_seconds(p, n) * rng.gauss(1.0, 0.15))
    fit = fit_prefill(rows, NO_DECODES)
    for chunk in fixed_chunks(8192, 1024):
        assert fit.model.chunk_seconds(*chunk) == pytest.approx(
            SERVED.chunk_seconds(*chunk), rel=0.1
        )
    assert 0.05 < fit.median_relative_error < 0.2


def test_stragglers_are_weighed_down() -> None:
    rows = rows_of()
    rows[::9] = [row._replace(seconds=60.0 * row.seconds) for row in rows[::9]]
    fit = fit_prefill(rows, NO_DECODES)
    for chunk in fixed_chunks(8192, 1024):
        assert fit.model.chunk_seconds(*chunk) == pytest.approx(
            SERVED.chunk_seconds(*chunk), rel=0.03
        )


def test_decode_terms_are_taken_off_mixed_steps() -> None:
    decode = DecodeTerms(0.002, 1e-7)
    rows = [
        row._replace(decode_rows=8, decode_context_tokens=9000, seconds=row.seconds + 0.0169)
        for row in rows_of()
    ]
    fit = fit_prefill(rows, decode)
    assert fit.model.linear_seconds_per_token == pytest.approx(SERVED.linear_seconds_per_token)
    assert fit.model.decode_row_seconds == 0.002
    assert fit.model.decode_context_seconds_per_token == 1e-7


def test_several_chunks_of_a_step_count_as_their_sums() -> None:
    rows = rows_of()
    for first in fixed_chunks(4096, 512):
        second = Chunk(1024, 256)
        rows.append(
            PrefillRow(
                first.prefix_tokens + second.prefix_tokens,
                first.new_tokens + second.new_tokens,
                first.area + second.area,
                0,
                0,
                SERVED.predict([first, second]),
            )
        )
    fit = fit_prefill(rows, NO_DECODES)
    assert fit.model.describe() == SERVED.describe()
    assert fit.p90_relative_error < 1e-6


@pytest.mark.parametrize(
    "rows",
    [
        rows_of()[:11],
        [row for row in rows_of() if row.prefix_tokens <= 512],
        rows_of(sizes=(1024,)),
        rows_of(sizes=(1000, 1024), prompt=8000),
    ],
    ids=["few rows", "two prefixes", "one size", "sizes too close"],
)
def test_rows_that_cannot_tell_the_terms_apart_are_refused(rows: list[PrefillRow]) -> None:
    assert refused(lambda: fit_prefill(rows, NO_DECODES)) == "samples"


def test_times_without_any_slope_are_refused() -> None:
    assert refused(lambda: fit_prefill(rows_of(lambda p, n: 0.1), NO_DECODES)) == "slope"


def test_decode_terms_that_explain_everything_are_refused() -> None:
    rows = [row._replace(decode_rows=10) for row in rows_of()]
    assert refused(lambda: fit_prefill(rows, DecodeTerms(row_seconds=100.0))) == "residual"


def test_a_refit_follows_a_slower_machine_from_one_chunk_size() -> None:
    slower = scaled(SERVED, 1.4)
    rows = rows_of(slower.chunk_seconds, sizes=(512,))
    fit = fit_prefill(rows, NO_DECODES, prior=SERVED)
    for chunk in fixed_chunks(8192, 1024):  # not a size it has seen
        assert fit.model.chunk_seconds(*chunk) == pytest.approx(
            slower.chunk_seconds(*chunk), rel=0.02
        )


def test_decode_rows_give_d0_and_d1() -> None:
    rng = random.Random(1)
    rows = []
    for _ in range(64):
        num = rng.randint(1, 32)
        context = num * rng.randint(100, 4000)
        rows.append(DecodeRow(num, context, 0.02 + 0.001 * num + 2e-7 * context))
    assert fit_decode(rows) == pytest.approx((0.001, 2e-7), rel=1e-4)


def test_decode_terms_that_never_vary_are_left_out() -> None:
    assert fit_decode([DecodeRow(1, 500, 0.02)] * 20) == DecodeTerms()
    assert fit_decode([DecodeRow(1, 500, 0.02)] * 3) is None
    same_length = [DecodeRow(n, 1000 * n, 0.02 + 0.001 * n) for n in range(1, 20)]
    terms = fit_decode(same_length)
    assert terms is not None
    assert terms.row_seconds == 0.0
    assert terms.context_seconds_per_token == pytest.approx(1e-6, rel=1e-3)
    growing = [DecodeRow(4, 1000 * n, 0.02 + 1e-6 * 1000 * n) for n in range(1, 20)]
    grown = fit_decode(growing)
    assert grown is not None
    assert grown.row_seconds == 0.0


def test_a_fit_of_the_most_rows_takes_milliseconds() -> None:
    rng = random.Random(2)
    rows = []
    while len(rows) < 512:
        chunk = Chunk(rng.randrange(0, 100_000), rng.randrange(128, 16384))
        seconds = KIMI.chunk_seconds(*chunk) * rng.gauss(1.0, 0.1)
        rows.append(PrefillRow(*chunk, chunk.area, 0, 0, max(seconds, 1e-3)))
    best = float("inf")
    for _ in range(5):
        start = time.process_time()
        fit_prefill(rows, NO_DECODES)
        best = min(best, time.process_time() - start)
    assert best < 0.03


def test_decodes_that_ride_along_give_their_terms_where_no_step_holds_decodes_only() -> None:
    rng = random.Random(3)
    rows = []
    for row in rows_of() + rows_of():
        num = rng.choice((0, 0, 8, 16, 32))
        context = num * rng.randint(100, 4000)
        seconds = row.seconds + 0.001 * num + 2e-7 * context
        rows.append(row._replace(decode_rows=num, decode_context_tokens=context, seconds=seconds))
    fit = fit_prefill(rows, None)
    assert fit.model.decode_row_seconds == pytest.approx(0.001, rel=0.01)
    assert fit.model.decode_context_seconds_per_token == pytest.approx(2e-7, rel=0.01)
    assert fit.model.without_decodes().describe() == SERVED.describe()


def test_prefills_without_decodes_say_nothing_about_them() -> None:
    fit = fit_prefill(rows_of(), None)
    assert fit.model.decode_row_seconds == 0.0


def test_a_fit_is_certain_where_its_rows_are_and_less_so_elsewhere() -> None:
    seen = [Chunk(prefix, size) for prefix in (0, 2048, 6144) for size in (512, 1024)]
    fit = fit_prefill(rows_of(noisy(SERVED, 0.05), sizes=(512, 1024)), NO_DECODES)
    assert 0.0 < fit.stderr(seen) < 0.03
    assert fit.stderr([Chunk(0, 32)]) > 2 * fit.stderr(seen)
    assert fit.quality(seen).stderr == fit.stderr(seen)
    assert fit.quality(seen).drift_sigma >= fit.sigma
    more = rows_of(noisy(SERVED, 0.05), sizes=(512, 1024) * 4)
    assert fit_prefill(more, NO_DECODES).stderr(seen) < 0.8 * fit.stderr(seen)


def test_what_no_row_shows_is_uncertain_without_bound() -> None:
    rows = [row for row in rows_of(sizes=(512, 1024)) if row.prefix_tokens == 0] * 8
    prefixes = [row._replace(prefix_tokens=1e-6 * n) for n, row in enumerate(rows)]
    fit = fit_prefill(prefixes, NO_DECODES)
    assert fit.stderr([Chunk(0, 512)]) < 0.01
    assert fit.stderr([Chunk(8192, 512)]) > 0.2
