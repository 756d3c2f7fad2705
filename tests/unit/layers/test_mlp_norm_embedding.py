"""The small layers equal their references."""

from __future__ import annotations

import pytest
import torch

from atom_lite.layers.embedding import Embedding
from atom_lite.layers.linear import GatedLinear, Linear
from atom_lite.layers.mlp import GatedMlp
from atom_lite.layers.norm import RmsNorm
from atom_lite_kernels import reference


def test_rms_norm_equals_the_reference() -> None:
    x, weight = torch.randn(3, 12), torch.randn(12)
    torch.testing.assert_close(
        RmsNorm(weight, 1e-5).forward(x), reference.rms_norm(x, weight, 1e-5)
    )


@pytest.mark.parametrize("has_kernel", [False, True])
def test_gated_mlp_adds_its_reference_to_the_residual(
    has_kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_kernel:
        monkeypatch.setattr("atom_lite.layers.linear.load_linear", lambda: None)
    gate_up, down, x = torch.randn(20, 6), torch.randn(6, 10), torch.randn(4, 6)
    residual = torch.randn(4, 6)
    mlp = GatedMlp(GatedLinear(gate_up), Linear(down))
    expected = residual + reference.silu_and_multiply(x @ gate_up.T) @ down.T
    mlp.add_to(residual, x)
    torch.testing.assert_close(residual, expected)
    assert mlp.weight_bytes == 4 * (20 * 6 + 6 * 10)


def test_half_types_of_a_gated_layer_need_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atom_lite.layers.linear.load_linear", lambda: None)
    gate_up, x = torch.randn(20, 6).bfloat16(), torch.randn(4, 6).bfloat16()
    expected = reference.silu_and_multiply(x.float() @ gate_up.float().T)
    gated = GatedLinear(gate_up).forward(x)
    torch.testing.assert_close(gated.float(), expected, atol=5e-2, rtol=5e-2)


def test_an_embedding_gives_rows_that_may_be_changed() -> None:
    table = torch.randn(5, 3)
    embedding = Embedding(table)
    rows = embedding.forward(torch.tensor([4, 0, 4]))
    assert torch.equal(rows, table[[4, 0, 4]])
    rows.zero_()
    assert torch.equal(embedding.forward(torch.tensor([2])), table[2:3])


@pytest.mark.parametrize("rows", [1, 9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("has_kernel", [False, True])
def test_a_tied_head_multiplies_by_the_embeddings_table(
    rows: int, dtype: torch.dtype, has_kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_kernel:
        monkeypatch.setattr("atom_lite.layers.linear.load_linear", lambda: None)
    table, x = torch.randn(50, 16).to(dtype), torch.randn(rows, 16)
    embedding = Embedding(table)
    ids = torch.tensor([49, 0, 17, 17])
    given = embedding.forward(ids)
    assert torch.equal(given.float(), table[ids].float())
    logits = embedding.head().forward(x.to(given.dtype)).float()
    torch.testing.assert_close(logits, x @ table.float().T, atol=3e-2, rtol=3e-2)
