"""Bit masks on logits, in both layouts and by both routes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from atom_lite.worker.token_masks import allow_only, forbid, full_masks, spread_and_forbid

ROWS = 5


def masks_and_allowed(vocab_size: int):
    """Random masks, and the same as a matrix of booleans."""
    rng = np.random.default_rng(vocab_size)
    allowed = rng.random((ROWS, vocab_size)) < 0.3
    padded = np.zeros((ROWS, -(-vocab_size // 32) * 32), dtype=np.uint8)
    padded[:, :vocab_size] = allowed
    masks = np.packbits(padded, axis=1, bitorder="little").view(np.int32)
    return masks, torch.from_numpy(allowed)


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 199, 4096])
@pytest.mark.parametrize("layout", ["row-major", "column-major", "spread"])
def test_forbidden_ids_become_impossible_and_no_other_changes(vocab_size, layout):
    masks, allowed = masks_and_allowed(vocab_size)
    logits = torch.randn(ROWS, vocab_size)
    expected = torch.where(allowed, logits, -torch.inf)
    if layout == "column-major":
        logits = logits.t().contiguous().t()
    strides = logits.stride()
    if layout == "spread":
        spread_and_forbid(logits, torch.from_numpy(masks))
    else:
        forbid(logits, masks)
    assert torch.equal(logits, expected)
    assert logits.stride() == strides


def test_full_masks_forbid_nothing():
    logits = torch.randn(ROWS, 199)
    before = logits.clone()
    forbid(logits, full_masks(ROWS, 199))
    assert torch.equal(logits, before)


@pytest.mark.parametrize("ids", [(0,), (31,), (32, 198), (2, 63, 64)])
def test_a_row_can_be_left_with_a_few_ids(ids):
    masks = full_masks(3, 199)
    allow_only(masks, 1, ids)
    logits = torch.zeros(3, 199)
    forbid(logits, masks)
    assert logits[1].isfinite().nonzero().flatten().tolist() == list(ids)
    assert logits[[0, 2]].isfinite().all()
