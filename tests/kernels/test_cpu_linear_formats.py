"""Every format of a weight: near the float64 product, and the same bits for any number of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from atom_lite_kernels import reference
from atom_lite_kernels.cpu.linear import Format, LinearKernel, Panels

if TYPE_CHECKING:
    import ctypes
    from collections.abc import Callable

FORMATS: tuple[Format, ...] = ("float32", "bfloat16", "4 half", "4 float", "8 half", "8 float")


@dataclass
class Packed:
    panels: Panels
    values: Tensor  # [N, K] float32, what the panels stand for


@pytest.fixture(scope="module")
def kernel(library: ctypes.CDLL) -> LinearKernel:
    return LinearKernel(library)


def make(
    kernel: LinearKernel,
    kind: Format,
    outer: int,
    inner: int,
    *,
    bias: Tensor | None = None,
    gated: bool = False,
    with_minimum: bool = True,
) -> Packed:
    """A random weight in a format, and its values by plain arithmetic."""
    if kind in ("float32", "bfloat16"):
        weight = torch.randn(outer, inner).to(getattr(torch, kind))
        return Packed(kernel.pack(weight, bias, gated=gated), weight.float())
    bits, scales = int(kind[0]), kind[2:]
    group = 16 if kind == "8 float" else 32
    # as formats have them: a float16, or its product with a small integer
    scale = (torch.randn(outer, inner // group) / 16).half().float()
    if scales == "float":
        scale *= torch.randint(3, 32, scale.shape) * 2 + 1
    minimum = scale.flip(0) * 3 if scales == "float" else scale.flip(0)
    if bits == 8 or not with_minimum:
        minimum = torch.zeros_like(scale)
    low, high = (0, 16) if bits == 4 and with_minimum else (-(1 << bits - 1), 1 << bits - 1)
    quants = torch.randint(low, high, (outer, inner), dtype=torch.int8)
    panels = kernel.pack_groups(
        *(quants, scale, minimum if bits == 4 and with_minimum else None, bias),
        bits=bits,
        gated=gated,
    )
    wide = [tensor.repeat_interleave(group, dim=1) for tensor in (scale, minimum)]
    return Packed(panels, quants * wide[0] + wide[1])


def relative_error(got: Tensor, exact: Tensor) -> float:
    return float((got.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("kind", FORMATS)
@settings(max_examples=12)
@given(data=st.data())
def test_products_are_near_the_float64_reference(
    kernel: LinearKernel, kind: Format, data: st.DataObject
) -> None:
    torch.manual_seed(data.draw(st.integers(0, 99), label="seed"))
    rows = data.draw(st.integers(1, 40), label="rows")
    inner = 32 * data.draw(st.integers(1, 9), label="groups")
    outer = data.draw(st.integers(1, 90), label="outer")
    bias = torch.randn(outer) if data.draw(st.booleans(), label="bias") else None
    weight = make(kernel, kind, outer, inner, bias=bias, with_minimum=data.draw(st.booleans()))
    assert weight.panels.format == kind
    wide = torch.randn(rows, inner + 3)
    x = wide[:, 3:]  # rows of a wider matrix
    exact = torch.nn.functional.linear(
        x.double(), weight.values.double(), None if bias is None else bias.double()
    )
    y = kernel.multiply(x, weight.panels)
    assert relative_error(y, exact) < 1e-5
    residual = torch.randn(rows, outer)
    expected = residual + y
    kernel.add_product(x, weight.panels, residual)
    torch.testing.assert_close(residual, expected, rtol=0, atol=1e-6)


def added(kernel: LinearKernel, x: Tensor, panels: Panels) -> Tensor:
    y = torch.ones(len(x), panels.num_columns)
    kernel.add_product(x, panels, y)
    return y


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("multiply", [LinearKernel.multiply, added])
def test_a_row_does_not_depend_on_its_company(
    kernel: LinearKernel, kind: Format, multiply: Callable[[LinearKernel, Tensor, Panels], Tensor]
) -> None:
    panels = make(kernel, kind, 85, 320, bias=torch.randn(85)).panels
    x = torch.randn(60, 320)
    together = multiply(kernel, x, panels)
    for count in range(1, 60):
        assert torch.equal(multiply(kernel, x[:count], panels), together[:count]), count
    assert torch.equal(multiply(kernel, x[17:18], panels), together[17:18])


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("rows", [1, 3, 5, 29])
def test_gated_products_are_silu_of_gate_times_up(
    kernel: LinearKernel, kind: Format, rows: int
) -> None:
    bias = torch.randn(2 * 21)
    weight = make(kernel, kind, 2 * 21, 64, bias=bias, gated=True)
    x = torch.randn(rows, 64) / 8
    exact = reference.silu_and_multiply(
        torch.nn.functional.linear(x.double(), weight.values.double(), bias.double())
    )
    assert relative_error(kernel.multiply(x, weight.panels), exact) < 1e-5


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("count", [0, 1, 20])
def test_columns_come_out_as_they_were_packed(
    kernel: LinearKernel, kind: Format, count: int
) -> None:
    weight = make(kernel, kind, 45, 96)
    ids = torch.randint(45, (count,))
    assert torch.equal(kernel.columns(weight.panels, ids), weight.values[ids])


@pytest.mark.parametrize("ids", [[0, 45], [-1]])
def test_columns_beyond_the_weight_are_refused(kernel: LinearKernel, ids: list[int]) -> None:
    weight = make(kernel, "bfloat16", 45, 32)
    with pytest.raises(IndexError, match="of a table of 45"):
        kernel.columns(weight.panels, torch.tensor(ids))


def test_scales_that_float16_does_not_hold_stay_float32(kernel: LinearKernel) -> None:
    quants = torch.zeros(4, 32, dtype=torch.int8)
    for value in (1e-9, 7e4, 1 / 3, torch.inf, torch.nan):
        scale = torch.full((4, 1), value)
        assert kernel.pack_groups(quants, scale, None, bits=4).format == "4 float"
        assert kernel.pack_groups(quants, scale, None, bits=8).format == "8 float"


def test_half_scales_are_read_exactly(kernel: LinearKernel) -> None:
    """All finite float16 numbers, subnormal and negative ones too."""
    halves = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.float16).float()
    scale = halves[halves.isfinite()].view(-1, 1)
    quants = torch.ones(len(scale), 32, dtype=torch.int8)
    panels = kernel.pack_groups(quants, scale, None, bits=8)
    assert panels.format == "8 half"
    rows = kernel.columns(panels, torch.arange(len(scale)))
    assert torch.equal(rows, scale.expand(-1, 32))
