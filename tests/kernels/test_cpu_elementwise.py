"""The compiled small operations equal their references, on whole tensors and on slices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from atom_lite_kernels import reference
from atom_lite_kernels.cpu.elementwise import (
    ElementwiseKernels,
    elementwise_for,
    load_elementwise,
)

if TYPE_CHECKING:
    import ctypes


@pytest.fixture
def kernels(library: ctypes.CDLL) -> ElementwiseKernels:
    return ElementwiseKernels(library)


def test_only_float32_on_a_cpu_is_served() -> None:
    assert elementwise_for(torch.empty(1)) is load_elementwise()
    assert elementwise_for(torch.empty(1, dtype=torch.bfloat16)) is None
    assert elementwise_for(torch.empty(1, device="meta")) is None


@pytest.mark.parametrize(("rows", "size"), [(1, 12), (5, 576), (40, 577)])
def test_rms_norm_equals_its_reference(kernels: ElementwiseKernels, rows: int, size: int) -> None:
    x, weight = torch.randn(rows, 2 * size)[:, :size], torch.randn(size)
    got = kernels.rms_norm(x, weight, 1e-5)
    torch.testing.assert_close(got, reference.rms_norm(x, weight, 1e-5))


@pytest.mark.parametrize(("rows", "head_size"), [(1, 4), (7, 10), (40, 64)])
def test_rotation_equals_its_reference(
    kernels: ElementwiseKernels, rows: int, head_size: int
) -> None:
    x = torch.randn(rows, 5, head_size)
    untouched = x[:, 4].clone()
    positions = torch.randint(0, 50, (rows,))
    frequencies = 0.9 ** torch.arange(head_size // 2)
    angle = positions[:, None] * frequencies
    cos = torch.cat((angle.cos(), angle.cos()), dim=1).unsqueeze(1)
    sin = torch.cat((-angle.sin(), angle.sin()), dim=1).unsqueeze(1)
    expected = reference.rotate(x[:, :4], positions, frequencies)
    kernels.rotate(x[:, :4], cos, sin)
    torch.testing.assert_close(x[:, :4], expected)
    assert torch.equal(x[:, 4], untouched)
