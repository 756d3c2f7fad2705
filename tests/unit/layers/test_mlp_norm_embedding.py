"""The small layers equal their references."""

from __future__ import annotations

import torch

from atom_lite.layers.embedding import Embedding
from atom_lite.layers.linear import Linear
from atom_lite.layers.mlp import GatedMlp
from atom_lite.layers.norm import RmsNorm
from atom_lite_kernels import reference


def test_rms_norm_equals_the_reference() -> None:
    x, weight = torch.randn(3, 12), torch.randn(12)
    torch.testing.assert_close(
        RmsNorm(weight, 1e-5).forward(x), reference.rms_norm(x, weight, 1e-5)
    )


def test_gated_mlp_equals_its_reference() -> None:
    gate_up, down, x = torch.randn(20, 6), torch.randn(6, 10), torch.randn(4, 6)
    mlp = GatedMlp(Linear(gate_up), Linear(down))
    expected = reference.silu_and_multiply(x @ gate_up.T) @ down.T
    torch.testing.assert_close(mlp.forward(x), expected)
    assert mlp.weight_bytes == 4 * (20 * 6 + 6 * 10)


def test_an_embedding_gives_rows_that_may_be_changed() -> None:
    table = torch.randn(5, 3)
    embedding = Embedding(table)
    rows = embedding.forward(torch.tensor([4, 0, 4]))
    assert torch.equal(rows, table[[4, 0, 4]])
    before = table.clone()
    rows.zero_()
    assert torch.equal(embedding.weight, before)
