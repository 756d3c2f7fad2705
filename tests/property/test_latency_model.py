"""solve(predict(x)) == x, for any model, prefix and chunk."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from atom_lite.chunking.latency_model import Chunk, LatencyModel

# From a fast accelerator to a slow CPU, and exactly zero.
terms = st.one_of(st.just(0.0), st.floats(1e-12, 1.0))
models = st.builds(
    LatencyModel,
    constant_seconds=terms,
    prefix_seconds_per_token=st.one_of(st.just(0.0), st.floats(1e-12, 1e-4)),
    linear_seconds_per_token=st.one_of(st.just(0.0), st.floats(1e-9, 1e-2)),
    attention_seconds_per_area=st.one_of(st.just(0.0), st.floats(1e-14, 1e-6)),
    decode_row_seconds=st.one_of(st.just(0.0), st.floats(1e-6, 1e-2)),
    decode_context_seconds_per_token=st.one_of(st.just(0.0), st.floats(1e-10, 1e-6)),
)
prefixes = st.integers(0, 1_000_000)
chunks = st.integers(1, 100_000)


@given(models, prefixes, chunks, st.integers(0, 256), st.integers(0, 1_000_000))
def test_solving_a_prediction_gives_the_chunk_back(
    model: LatencyModel, prefix: int, new: int, rows: int, context: int
) -> None:
    seconds = model.predict([Chunk(prefix, new)], decode_rows=rows, decode_context_tokens=context)
    fixed = model.predict([Chunk(prefix, 0)], decode_rows=rows, decode_context_tokens=context)
    # Where new tokens vanish beside the fixed part, a float has no digits left to solve from.
    assume(seconds - fixed > 1e-6 * seconds)
    solved = model.largest_chunk(prefix, seconds, decode_rows=rows, decode_context_tokens=context)
    assert solved == pytest.approx(new, rel=1e-6)


@given(models, prefixes, st.floats(1e-6, 1e3))
def test_predicting_a_solution_gives_the_target_back(
    model: LatencyModel, prefix: int, target: float
) -> None:
    solved = model.largest_chunk(prefix, target)
    assume(0.0 < solved < 1e12)
    assert model.chunk_seconds(prefix, solved) == pytest.approx(target, rel=1e-9)


@given(models, prefixes, chunks, chunks)
def test_more_tokens_never_take_less_time(
    model: LatencyModel, prefix: int, first: int, second: int
) -> None:
    low, high = sorted((first, second))
    assert model.chunk_seconds(prefix, low) <= model.chunk_seconds(prefix, high)


@given(models, prefixes, st.floats(0.0, 1e3), st.floats(0.0, 1e3))
def test_more_time_never_means_fewer_tokens(
    model: LatencyModel, prefix: int, first: float, second: float
) -> None:
    low, high = sorted((first, second))
    assert model.largest_chunk(prefix, low) <= model.largest_chunk(prefix, high)
