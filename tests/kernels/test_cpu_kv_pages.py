"""Stored keys and values equal the reference's in every type, and are near what was given."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from atom_lite_kernels import reference
from atom_lite_kernels.cpu.attention import AttentionKernels
from atom_lite_kernels.paged_kv import LayerKV, as_numbers, as_stored, is_scaled

if TYPE_CHECKING:
    import ctypes

DTYPES = [torch.float32, torch.bfloat16, torch.int8, torch.float8_e4m3fn]


@pytest.fixture
def kernels(library: ctypes.CDLL) -> AttentionKernels:
    return AttentionKernels(library)


def ones(dtype: torch.dtype, head_size: int) -> LayerKV:
    """Pages of 20 blocks of 4 slots and 3 heads."""
    shape = (20, 2, 3, 4, head_size)
    scales = torch.ones(shape[:4]) if is_scaled(dtype) else None
    return LayerKV(torch.ones(shape).to(dtype), scales)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "head_size"), [(1, 24), (40, 24), (70, 64)])
def test_stored_keys_and_values_equal_the_reference(
    kernels: AttentionKernels, dtype: torch.dtype, rows: int, head_size: int
) -> None:
    torch.manual_seed(rows)
    heads = torch.randn(rows, 9, head_size) * torch.logspace(-6, 6, 9)[:, None]
    heads[0, 4, :3] = torch.tensor([torch.inf, -torch.inf, torch.nan])
    heads[-1, 8, 20:24] = torch.tensor([torch.nan, torch.inf, -torch.inf, 3.4e38])
    heads[0, 5] = 0.0
    keys, values = heads[:, 3:6], heads[:, 6:9]
    slots = torch.randperm(20 * 4)[:rows]
    got, expected = ones(dtype, head_size), ones(dtype, head_size)
    kernels.store(got, keys, values, slots)
    reference.store_kv(expected, keys, values, slots)
    assert torch.equal(got.pages.float(), expected.pages.float())
    assert got.pages.float().isfinite().all()
    if is_scaled(dtype):
        assert torch.equal(got.scales, expected.scales)


# Of the head's largest number: half a step of int8; of e4m3 half a step of 3 bits of mantissa.
@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.int8, 0.5 / 127), (torch.float8_e4m3fn, 1 / 28)]
)
def test_a_stored_number_is_within_half_a_step(dtype: torch.dtype, bound: float) -> None:
    torch.manual_seed(0)
    given = torch.randn(50, 3, 64) * torch.logspace(-5, 5, 50)[:, None, None]
    error = (as_numbers(*as_stored(given, dtype), torch.float32) - given).abs()
    assert (error <= given.abs().amax(-1, keepdim=True) * bound * 1.0001).all()


def test_every_code_of_fp8_is_read_as_torch_reads_it(kernels: AttentionKernels) -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    codes = codes[(codes & 127) != 127]  # NaN
    numbers = codes.view(torch.float8_e4m3fn).float()
    for head_size in (1, 64):  # number by number, and by vectors
        padded = torch.zeros(256, dtype=torch.uint8)
        padded[: len(codes)] = codes
        pages = padded.view(torch.float8_e4m3fn).view(-1, 1, 1, 1, head_size)
        pages = pages.expand(-1, 2, -1, -1, -1).contiguous()
        kv = LayerKV(pages, torch.ones(pages.shape[:4]))
        out = torch.empty(len(pages), 1, head_size)
        tables, contexts = torch.arange(len(pages))[:, None], torch.ones(len(pages)).long()
        kernels.decode(
            torch.zeros(out.shape), kv, tables, contexts, out, scale=1.0, sliding_window=None
        )
        assert torch.equal(out.flatten()[: len(numbers)], numbers)
