"""The compiled prefill attention equals the reference, however a prompt is cut."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
import torch

from atom_lite_kernels import reference
from atom_lite_kernels.cpu.prefill_attention import PrefillAttention
from atom_lite_kernels.paged_kv import LayerKV, as_stored

if TYPE_CHECKING:
    import ctypes

SCALE = 0.2


@pytest.fixture
def kernel(library: ctypes.CDLL) -> PrefillAttention:
    return PrefillAttention(library)


class Prompt:
    """A sequence of `length` tokens whose keys and values are in pages that lie anywhere."""

    def __init__(
        self,
        length: int,
        heads: tuple[int, int] = (6, 2),
        head_size: int = 64,
        block_size: int = 16,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        torch.manual_seed(length)
        num_blocks = -(-length // block_size)
        self.table = torch.randperm(num_blocks)
        numbers = torch.randn(num_blocks, 2, heads[1], block_size, head_size)
        self.kv = LayerKV(*as_stored(numbers, dtype))
        if self.kv.scales is None:  # what is unused must not be read
            self.kv.pages[self.table[-1], :, :, (length - 1) % block_size + 1 :] = torch.nan
        # rows of a wider matrix, as the kernel gets them from the joined q, k and v
        self.queries = torch.randn(length, sum(heads), head_size)[:, : heads[0]]

    def attend(
        self, kernel: PrefillAttention, first: int, last: int, window: int | None = None
    ) -> torch.Tensor:
        """What the kernel makes of tokens [first, last)."""
        queries = self.queries[first:last]
        out = torch.full(queries.shape, torch.nan)
        kernel.attend(queries, self.kv, self.table, first, out, scale=SCALE, sliding_window=window)
        return out

    def reference(self, first: int, last: int, window: int | None = None) -> torch.Tensor:
        """The same by the reference."""
        return reference.paged_attention(
            self.queries[first:last],
            self.kv,
            [last - first],
            [last],
            self.table[None],
            scale=SCALE,
            sliding_window=window,
        )


@pytest.mark.parametrize("window", [None, 1, 20, 130, 1000])
@pytest.mark.parametrize(
    ("first", "last"), [(0, 1), (0, 16), (0, 17), (0, 150), (37, 87), (300, 377), (400, 401)]
)
def test_chunks_equal_the_reference(
    kernel: PrefillAttention, first: int, last: int, window: int | None
) -> None:
    prompt = Prompt(last)
    got, expected = (
        prompt.attend(kernel, first, last, window),
        prompt.reference(first, last, window),
    )
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("heads", [(4, 4), (9, 3), (8, 1), (96, 2), (50, 1)])
@pytest.mark.parametrize(
    ("head_size", "block_size"), [(16, 4), (64, 16), (80, 5), (128, 8), (256, 3), (6, 7)]
)
def test_any_grouping_of_heads_equals_the_reference(
    kernel: PrefillAttention, heads: tuple[int, int], head_size: int, block_size: int
) -> None:
    prompt = Prompt(160, heads, head_size, block_size)
    got, expected = prompt.attend(kernel, 100, 160), prompt.reference(100, 160)
    torch.testing.assert_close(got, expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize(("first", "last"), [(0, 150), (700, 717), (1000, 1100)])
def test_every_type_of_cache_equals_the_reference(
    kernel: PrefillAttention, dtype: torch.dtype, first: int, last: int
) -> None:
    prompt = Prompt(last, dtype=dtype)
    got, expected = prompt.attend(kernel, first, last), prompt.reference(first, last)
    torch.testing.assert_close(got, expected, atol=2e-5, rtol=1e-4)


# Small chunks have their keys shared out over threads, large ones their queries.
@pytest.mark.parametrize("dtype", [torch.float32, torch.float8_e4m3fn])
@pytest.mark.parametrize("window", [None, 150, 700])
def test_a_token_does_not_depend_on_how_its_prompt_is_cut(
    kernel: PrefillAttention, window: int | None, dtype: torch.dtype
) -> None:
    prompt = Prompt(1300, dtype=dtype)
    whole = prompt.attend(kernel, 0, 1300, window)
    uneven = [0, 1, 100, 101, 333, 500, 511, 530, 1290, 1300]
    for cuts in ([0, 64, 128, 500, 1300], uneven, list(range(0, 1301, 130))):
        for first, last in itertools.pairwise(cuts):
            assert torch.equal(prompt.attend(kernel, first, last, window), whole[first:last])


def test_scores_far_apart_do_not_overflow(kernel: PrefillAttention) -> None:
    prompt = Prompt(200)
    prompt.kv.pages[prompt.table[3], 0] *= 300
    got, expected = prompt.attend(kernel, 0, 200), prompt.reference(0, 200)
    torch.testing.assert_close(got, expected, atol=1e-2, rtol=1e-2)


def test_a_query_that_overflowed_leaves_the_others_alone(kernel: PrefillAttention) -> None:
    prompt = Prompt(100)
    expected = prompt.attend(kernel, 50, 100)
    prompt.queries[60] = torch.nan
    got = prompt.attend(kernel, 50, 100)
    others = [token for token in range(50) if token != 10]
    assert torch.equal(got[others], expected[others])


def test_what_the_kernel_does_not_serve(kernel: PrefillAttention) -> None:
    assert kernel.serves(24)
    assert not kernel.serves(512)
