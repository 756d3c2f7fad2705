import math

import pytest

from atom_lite.chunking.latency_model import Chunk, LatencyModel
from tests.unit.chunking.samples import KIMI

FULL = LatencyModel(
    constant_seconds=1.0,
    prefix_seconds_per_token=0.1,
    linear_seconds_per_token=0.01,
    attention_seconds_per_area=0.001,
    decode_row_seconds=0.2,
    decode_context_seconds_per_token=0.0001,
)


def test_a_step_is_the_sum_of_its_terms() -> None:
    seconds = FULL.predict([Chunk(10, 5), Chunk(0, 2)], decode_rows=3, decode_context_tokens=1000)
    first = 0.1 * 10 + 0.01 * 5 + 0.001 * (2 * 10 * 5 + 25)
    second = 0.01 * 2 + 0.001 * 4
    assert seconds == pytest.approx(1.0 + first + second + 0.2 * 3 + 0.0001 * 1000)


def test_chunk_seconds_is_a_step_of_one_chunk() -> None:
    assert FULL.chunk_seconds(10, 5) == FULL.predict([Chunk(10, 5)])


def test_areas_of_any_cut_add_up_to_the_square_of_the_prompt() -> None:
    cut = [Chunk(0, 100), Chunk(100, 37), Chunk(137, 863)]
    assert sum(chunk.area for chunk in cut) == 1000**2


def test_decode_terms_come_out_of_a_whole_step_target() -> None:
    target = FULL.predict([Chunk(100, 50)], decode_rows=4, decode_context_tokens=5000)
    solved = FULL.largest_chunk(100, target, decode_rows=4, decode_context_tokens=5000)
    assert solved == pytest.approx(50)


def test_a_target_under_the_fixed_part_leaves_no_chunk() -> None:
    assert FULL.largest_chunk(1000, FULL.chunk_seconds(1000, 0)) == 0.0
    assert FULL.largest_chunk(1000, 0.0) == 0.0


def test_without_an_attention_term_the_chunk_is_linear_in_the_room() -> None:
    model = LatencyModel.from_milliseconds(a=0.0, b=2.0, c=1.0)
    assert model.largest_chunk(10_000, 0.101) == pytest.approx(50.0)


def test_tokens_that_cost_nothing_are_unbounded() -> None:
    model = LatencyModel.from_milliseconds(a=0.0, b=0.0, c=1.0)
    assert math.isinf(model.largest_chunk(0, 1.0))
    assert math.isinf(KIMI.largest_chunk(0, math.inf))


def test_a_prefix_that_dwarfs_the_chunk_does_not_cancel() -> None:
    # The textbook formula is off by 10 % here: it subtracts two numbers equal to 15 digits.
    model = LatencyModel.from_milliseconds(a=1.0, b=1e-6, c=0.0)
    target = model.chunk_seconds(10**9, 1e-3)
    assert model.largest_chunk(10**9, target) == pytest.approx(1e-3, rel=1e-9)


@pytest.mark.parametrize("value", [-1e-9, math.nan, math.inf])
def test_terms_that_are_negative_or_not_finite_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="linear_seconds_per_token"):
        LatencyModel.from_milliseconds(a=1.0, b=value, c=0.0)


def test_description_has_atoms_letters_in_milliseconds() -> None:
    assert KIMI.describe() == "a=3.250e-07 b=6.030e-03 c=2.610e+01 gamma=5.390e-04"
