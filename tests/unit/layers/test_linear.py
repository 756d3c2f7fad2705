"""Linear layers compute x @ weight.T + bias, packed or not."""

from __future__ import annotations

import pytest
import torch

from atom_lite.layers.linear import (
    Linear,
    PlainHead,
    has_panels,
    one_dnn_packs,
    panel_kernel,
)

CPU = torch.device("cpu")


@pytest.mark.parametrize("rows", [1, 2, 7, 33, 130])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("pack", [False, True])
def test_linear_equals_torch(rows: int, has_bias: bool, pack: bool) -> None:
    weight = torch.randn(30, 17)
    bias = torch.randn(30) if has_bias else None
    x = torch.randn(rows, 17)
    expected = torch.nn.functional.linear(x, weight, bias)
    torch.testing.assert_close(Linear(weight, bias, pack=pack).forward(x), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_product_is_added_to_the_residual(dtype: torch.dtype) -> None:
    activations = torch.float32 if has_panels(dtype, CPU) else dtype
    weight, x = torch.randn(30, 17).to(dtype), torch.randn(5, 17).to(activations)
    residual = torch.randn(5, 30).to(activations)
    expected = residual.float() + x.float() @ weight.float().T
    Linear(weight).add_to(residual, x)
    torch.testing.assert_close(residual.float(), expected, atol=5e-2, rtol=5e-2)


def test_without_our_kernel_float32_is_packed_by_one_dnn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atom_lite.layers.linear.load_linear", lambda: None)
    weight, bias, x = torch.randn(30, 17), torch.randn(30), torch.randn(5, 17)
    assert one_dnn_packs(weight)
    expected = torch.nn.functional.linear(x, weight, bias)
    torch.testing.assert_close(Linear(weight, bias).forward(x), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types_without_our_kernel_work_whether_or_not_the_cpu_has_them(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atom_lite.layers.linear.load_linear", lambda: None)
    weight, x = torch.randn(30, 17).to(dtype), torch.randn(5, 17).to(dtype)
    expected = (x.float() @ weight.float().T).to(dtype)
    torch.testing.assert_close(Linear(weight).forward(x), expected, atol=3e-2, rtol=3e-2)


def test_float32_is_packed_and_its_plain_copy_dropped() -> None:
    weight = torch.randn(8, 8)
    linear = Linear(weight, torch.zeros(8))
    assert linear.weight_bytes == (64 + 8) * 4
    assert not any(value is weight for value in vars(linear).values())


def test_other_devices_and_types_are_not_packed() -> None:
    for weight in (torch.empty(8, 8, device="meta"), torch.empty(8, 8, dtype=torch.float64)):
        assert panel_kernel(weight) is None
        assert not one_dnn_packs(weight)


@pytest.mark.parametrize("rows", [1, 2, 9])
def test_a_tied_head_equals_torch(rows: int) -> None:
    weight, x = torch.randn(50, 16), torch.randn(rows, 16)
    logits = PlainHead(weight).forward(x)
    assert logits.shape == (rows, 50)
    torch.testing.assert_close(logits, x @ weight.T)
