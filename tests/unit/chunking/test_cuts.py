import math

import pytest

from atom_lite.chunking.cuts import Span, Target, chunk_times, cut, next_size
from atom_lite.chunking.planner import plan_limits
from tests.unit.chunking.samples import KIMI, SERVED

LIMITS = plan_limits(2048)


def test_chunks_are_the_largest_within_the_target() -> None:
    span = Span(0, 16384)
    target = KIMI.chunk_seconds(0, 2000)
    sizes = cut(KIMI, span, Target(target), plan_limits(32768))
    assert sizes is not None
    position = 0
    for size in sizes[:-2]:
        assert size % 64 == 0
        assert KIMI.chunk_seconds(position, size) <= target
        assert KIMI.chunk_seconds(position, size + 64) > target
        position += size


def test_a_prompt_is_cut_completely() -> None:
    for tokens in (1, 63, 64, 127, 128, 129, 1000, 4096, 5000):
        for seconds in (0.0, 0.01, 0.1, math.inf):
            sizes = cut(SERVED, Span(0, tokens), Target(seconds), LIMITS)
            assert sizes is not None
            assert sum(sizes) == tokens
            assert max(sizes) <= 2048


def test_a_tail_under_half_a_chunk_is_shared_with_the_chunk_before() -> None:
    # 2048 + 192 is what a plain greedy cut leaves.
    assert cut(SERVED, Span(0, 2240), Target(math.inf), LIMITS) == [1152, 1088]
    assert cut(SERVED, Span(0, 3100), Target(math.inf), LIMITS) == [2048, 1052]


def test_two_chunks_under_the_floor_become_one() -> None:
    assert cut(SERVED, Span(0, 255), Target(0.0), LIMITS) == [255]
    assert cut(SERVED, Span(0, 256), Target(0.0), LIMITS) == [128, 128]


def test_more_chunks_than_allowed_is_no_cut() -> None:
    assert cut(SERVED, Span(0, 4096), Target(0.0), LIMITS, at_most=31) is None
    assert cut(SERVED, Span(0, 4096), Target(0.0), LIMITS, at_most=32) is not None


def test_a_last_chunk_can_be_made_small_on_purpose() -> None:
    sizes = cut(SERVED, Span(0, 4096), Target(math.inf, last_tokens=256), LIMITS)
    assert sizes == [2048, 1792, 256]


def test_a_lean_moves_the_target_along_the_prompt() -> None:
    flat = plan_limits(4096)
    falling = cut(KIMI, Span(0, 16384), Target(0.05, lean=-0.8), flat)
    rising = cut(KIMI, Span(0, 16384), Target(0.05, lean=0.8), flat)
    assert falling is not None and rising is not None
    assert falling[0] > rising[0]
    assert falling[-3] < rising[-3]


def test_the_rule_goes_on_from_any_position() -> None:
    span, target = Span(0, 16384), Target(KIMI.chunk_seconds(0, 2000))
    sizes = cut(KIMI, span, target, LIMITS) or []
    position = sum(sizes[:3])
    assert next_size(KIMI, span, position, target, LIMITS) == sizes[3]
    # A step with little budget left the prompt off the plan's cuts; it is still cut completely.
    position, seen = 777, []
    while position < span.end:
        seen.append(next_size(KIMI, span, position, target, LIMITS))
        position += seen[-1]
    assert position == span.end
    assert min(seen) >= 128


def test_times_are_the_models() -> None:
    span = Span(512, 2000)
    times = chunk_times(KIMI, span, [512, 976])
    assert times == pytest.approx([KIMI.chunk_seconds(512, 512), KIMI.chunk_seconds(1024, 976)])


@pytest.mark.parametrize(
    ("most", "expected"),
    [
        (2048, (2048, 64, 128)),
        (2000, (1984, 64, 128)),
        (100, (96, 32, 32)),
        (10, (8, 4, 4)),
        (1, (1, 1, 1)),
    ],
)
def test_limits_agree_with_each_other(most: int, expected: tuple[int, int, int]) -> None:
    assert tuple(plan_limits(most)) == expected
