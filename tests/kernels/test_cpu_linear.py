"""The compiled linear kernel equals torch, for every tile height and ragged width."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from atom_lite_kernels import reference
from atom_lite_kernels.cpu.linear import LinearKernel

if TYPE_CHECKING:
    import ctypes


@pytest.fixture
def kernel(library: ctypes.CDLL) -> LinearKernel:
    return LinearKernel(library)


@pytest.mark.parametrize("rows", [*range(1, 15), 33, 200])
@pytest.mark.parametrize(("inner", "outer"), [(1, 1), (17, 30), (64, 48), (1536, 40)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_products_equal_torch(
    kernel: LinearKernel, rows: int, inner: int, outer: int, has_bias: bool
) -> None:
    weight = torch.randn(outer, inner)
    bias = torch.randn(outer) if has_bias else None
    x = torch.randn(rows, inner)
    expected = torch.nn.functional.linear(
        x.double(), weight.double(), None if bias is None else bias.double()
    )
    torch.testing.assert_close(
        kernel.multiply(x, kernel.pack(weight, bias)).double(), expected, atol=1e-4, rtol=1e-4
    )


@pytest.mark.parametrize("has_bias", [False, True])
def test_the_gated_product_is_silu_of_gate_times_up(kernel: LinearKernel, has_bias: bool) -> None:
    gate_up, x = torch.randn(2 * 21, 10), torch.randn(9, 10)
    bias = torch.randn(2 * 21) if has_bias else None
    expected = reference.silu_and_multiply(torch.nn.functional.linear(x, gate_up, bias))
    got = kernel.multiply(x, kernel.pack(gate_up, bias, gated=True))
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


def test_large_gates_do_not_overflow(kernel: LinearKernel) -> None:
    gate_up = torch.tensor([[1.0], [1.0]])
    x = torch.tensor([[-200.0], [-90.0], [0.0], [200.0]])
    got = kernel.multiply(x, kernel.pack(gate_up, gated=True))
    torch.testing.assert_close(got, torch.tensor([[0.0], [0.0], [0.0], [40000.0]]))


def test_added_products_keep_what_was_there(kernel: LinearKernel) -> None:
    weight, x, y = torch.randn(30, 17), torch.randn(8, 17), torch.randn(8, 30)
    expected = y + x @ weight.T
    kernel.add_product(x, kernel.pack(weight), y)
    torch.testing.assert_close(y, expected)


def test_rows_of_a_wider_matrix_are_read_in_place(kernel: LinearKernel) -> None:
    wide, weight = torch.randn(6, 40), torch.randn(20, 17)
    got = kernel.multiply(wide[:, 3:20], kernel.pack(weight))
    torch.testing.assert_close(got, wide[:, 3:20] @ weight.T)


def test_no_rows_are_no_work(kernel: LinearKernel) -> None:
    weight, nothing = torch.randn(40, 17), torch.empty(0, 17)
    assert kernel.multiply(nothing, kernel.pack(weight)).shape == (0, 40)
    assert kernel.multiply(nothing, kernel.pack(weight, gated=True)).shape == (0, 20)
    kernel.add_product(nothing, kernel.pack(weight), torch.empty(0, 40))


@pytest.mark.parametrize("gated", [False, True])
def test_a_row_does_not_depend_on_its_company(kernel: LinearKernel, gated: bool) -> None:
    weight = torch.randn(96, 300)
    panels = kernel.pack(weight, gated=True) if gated else kernel.pack(weight)
    x = torch.randn(130, 300)
    together = kernel.multiply(x, panels)
    for first, last in ((0, 1), (1, 3), (3, 10), (10, 70), (70, 130)):
        assert torch.equal(kernel.multiply(x[first:last], panels), together[first:last])


def test_one_row_that_overflows_leaves_the_others_alone(kernel: LinearKernel) -> None:
    weight, x = torch.randn(30, 17), torch.randn(8, 17)
    panels = kernel.pack(weight)
    expected = kernel.multiply(x, panels)
    x[3] = torch.nan
    got = kernel.multiply(x, panels)
    assert got[3].isnan().all()
    others = [0, 1, 2, 4, 5, 6, 7]
    assert torch.equal(got[others], expected[others])


def test_silu_is_exact_to_a_few_bits_for_any_gate(kernel: LinearKernel) -> None:
    x = torch.linspace(-100, 100, 20001)[:, None]
    gate_up = torch.tensor([[1.0], [0.0]])
    up = torch.tensor([0.0, 1.0])
    got = kernel.multiply(x, kernel.pack(gate_up, up, gated=True))
    expected = torch.nn.functional.silu(x.double())
    torch.testing.assert_close(got.double(), expected, atol=1e-30, rtol=5e-6)
