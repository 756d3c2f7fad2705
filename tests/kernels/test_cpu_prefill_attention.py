"""The compiled prefill attention equals the reference, however a prompt is cut."""

from __future__ import annotations

import itertools

import pytest
import torch

from atom_lite_kernels import reference
from atom_lite_kernels.cpu.prefill_attention import PrefillAttention, load_prefill_attention

SCALE = 0.2


@pytest.fixture
def kernel() -> PrefillAttention:
    loaded = load_prefill_attention()
    if loaded is None:
        pytest.skip("this machine has no C++ compiler")
    return loaded


class Prompt:
    """A sequence of `length` tokens whose keys and values are in pages that lie anywhere."""

    def __init__(
        self,
        length: int,
        heads: tuple[int, int] = (6, 2),
        head_size: int = 64,
        block_size: int = 16,
    ) -> None:
        torch.manual_seed(length)
        num_blocks = -(-length // block_size)
        self.table = torch.randperm(num_blocks)
        self.pages = torch.randn(num_blocks, 2, heads[1], block_size, head_size)
        self.pages[self.table[-1], :, :, (length - 1) % block_size + 1 :] = torch.nan  # unused
        # rows of a wider matrix, as the kernel gets them from the joined q, k and v
        self.queries = torch.randn(length, sum(heads), head_size)[:, : heads[0]]

    def attend(
        self, kernel: PrefillAttention, first: int, last: int, window: int | None = None
    ) -> torch.Tensor:
        """What the kernel makes of tokens [first, last)."""
        queries = self.queries[first:last]
        out = torch.full(queries.shape, torch.nan)
        kernel.attend(
            queries, self.pages, self.table, first, out, scale=SCALE, sliding_window=window
        )
        return out

    def reference(self, first: int, last: int, window: int | None = None) -> torch.Tensor:
        """The same by the reference."""
        return reference.paged_attention(
            self.queries[first:last],
            self.pages,
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
@pytest.mark.parametrize(("head_size", "block_size"), [(16, 4), (64, 16), (128, 8), (256, 3)])
def test_any_grouping_of_heads_equals_the_reference(
    kernel: PrefillAttention, heads: tuple[int, int], head_size: int, block_size: int
) -> None:
    prompt = Prompt(160, heads, head_size, block_size)
    got, expected = prompt.attend(kernel, 100, 160), prompt.reference(100, 160)
    torch.testing.assert_close(got, expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("window", [None, 150])
def test_a_token_does_not_depend_on_how_its_prompt_is_cut(
    kernel: PrefillAttention, window: int | None
) -> None:
    prompt = Prompt(500)
    whole = prompt.attend(kernel, 0, 500, window)
    for cuts in ([0, 64, 128, 500], [0, 1, 100, 101, 333, 500], list(range(0, 501, 125))):
        for first, last in itertools.pairwise(cuts):
            assert torch.equal(prompt.attend(kernel, first, last, window), whole[first:last])


def test_scores_far_apart_do_not_overflow(kernel: PrefillAttention) -> None:
    prompt = Prompt(200)
    prompt.pages[prompt.table[3], 0] *= 300
    got, expected = prompt.attend(kernel, 0, 200), prompt.reference(0, 200)
    torch.testing.assert_close(got, expected, atol=1e-2, rtol=1e-2)


def test_a_query_that_overflowed_leaves_the_others_alone(kernel: PrefillAttention) -> None:
    prompt = Prompt(100)
    expected = prompt.attend(kernel, 50, 100)
    prompt.queries[60] = torch.nan
    got = prompt.attend(kernel, 50, 100)
    others = [token for token in range(50) if token != 10]
    assert torch.equal(got[others], expected[others])


def test_what_the_kernel_does_not_serve() -> None:
    assert PrefillAttention.serves(torch.float32, 64)
    assert not PrefillAttention.serves(torch.bfloat16, 64)
    assert not PrefillAttention.serves(torch.float32, 24)
    assert not PrefillAttention.serves(torch.float32, 512)
