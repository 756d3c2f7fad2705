"""The compiled decode attention equals the reference, across parts, windows and head sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from atom_lite_kernels import reference
from atom_lite_kernels.cpu.decode_attention import DecodeAttention
from atom_lite_kernels.paged_kv import LayerKV, as_stored, is_scaled

if TYPE_CHECKING:
    import ctypes

    from torch import Tensor


BLOCK = 16
SCALE = 0.2


@pytest.fixture
def kernel(library: ctypes.CDLL) -> DecodeAttention:
    return DecodeAttention(library)


def paged(
    contexts: list[int],
    heads: tuple[int, int],
    head_size: int,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, LayerKV, Tensor]:
    """Queries [B, Hq, D], cache and block tables of rows whose blocks lie anywhere."""
    torch.manual_seed(sum(contexts))
    widths = [-(-context // BLOCK) for context in contexts]
    blocks = torch.randperm(sum(widths))
    tables = torch.zeros(len(contexts), max(widths), dtype=torch.int64)
    taken = 0
    for row, width in enumerate(widths):
        tables[row, :width] = blocks[taken : taken + width]
        taken += width
    pages = torch.randn(len(blocks), 2, heads[1], BLOCK, head_size)
    # rows of a wider matrix, as the kernel gets them from the joined q, k and v
    queries = torch.randn(len(contexts), sum(heads), head_size)[:, : heads[0]]
    return queries, LayerKV(*as_stored(pages, dtype)), tables


def attend(
    kernel: DecodeAttention,
    case: tuple[Tensor, LayerKV, Tensor],
    contexts: list[int],
    rows: list[int] | None = None,
    window: int | None = None,
) -> Tensor:
    """What the kernel makes of some rows of a case."""
    queries, kv, tables = case
    rows = list(range(len(contexts))) if rows is None else rows
    queries, tables = queries[rows[0] : rows[-1] + 1], tables[rows[0] : rows[-1] + 1]
    out = torch.empty(queries.shape)
    lens = torch.tensor([contexts[row] for row in rows])
    kernel(queries, kv, tables, lens, out, scale=SCALE, sliding_window=window)
    return out


@pytest.mark.parametrize("head_size", [64, 128, 24, 4])
@pytest.mark.parametrize("heads", [(9, 3), (4, 4), (8, 1)])
@pytest.mark.parametrize("window", [None, 1, 7, 600])
def test_the_kernel_equals_the_reference(
    kernel: DecodeAttention, heads: tuple[int, int], head_size: int, window: int | None
) -> None:
    contexts = [1, 7, 16, 17, 511, 512, 513, 1100, 1537]
    case = paged(contexts, heads, head_size)
    expected = reference.paged_attention(
        case[0],
        case[1],
        [1] * len(contexts),
        contexts,
        case[2],
        scale=SCALE,
        sliding_window=window,
    )
    got = attend(kernel, case, contexts, window=window)
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize(("heads", "head_size"), [((9, 3), 64), ((8, 2), 128), ((4, 4), 20)])
def test_every_type_of_cache_equals_the_reference(
    kernel: DecodeAttention, dtype: torch.dtype, heads: tuple[int, int], head_size: int
) -> None:
    contexts = [1, 7, 255, 257, 700]
    case = paged(contexts, heads, head_size, dtype)
    assert is_scaled(dtype) == (case[1].scales is not None)
    expected = reference.paged_attention(*case[:2], [1] * 5, contexts, case[2], scale=SCALE)
    torch.testing.assert_close(attend(kernel, case, contexts), expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_a_row_does_not_depend_on_its_company(kernel: DecodeAttention, dtype: torch.dtype) -> None:
    contexts = [1300, 5, 700, 64, 2000]
    case = paged(contexts, (6, 2), 64, dtype)
    together = attend(kernel, case, contexts)
    for rows in ([0], [1, 2], [3, 4], [4]):
        assert torch.equal(attend(kernel, case, contexts, rows), together[rows])


def test_scores_far_apart_do_not_overflow(kernel: DecodeAttention) -> None:
    contexts = [600]
    queries, kv, tables = paged(contexts, (2, 1), 64)
    kv.pages[tables[0, -1], 0] *= 300
    expected = reference.paged_attention(
        queries, kv, [1], contexts, tables, scale=SCALE, sliding_window=None
    )
    got = attend(kernel, (queries, kv, tables), contexts)
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-3)
