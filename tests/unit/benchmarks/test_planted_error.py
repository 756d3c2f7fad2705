"""The planted error hides exactly the prefix's last tokens, and nothing when it is off."""

import pytest
import torch

from atom_lite.attention.protocol import AttentionMetadata, LayerKV
from atom_lite.attention.reference import ReferenceBackend
from benchmarks.planted_error import PrefixDropper

HEADS, KV_HEADS, SIZE, BLOCK = 6, 2, 8, 4
QUERY_LENS, CONTEXT_LENS = [1, 7, 5], [30, 40, 5]  # a decode, a chunk after 33, a first chunk
TABLES = [list(range(8)), list(range(10, 20)), [25, 24]]


def attend(dropper: PrefixDropper, pages: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    tokens = sum(QUERY_LENS)
    q, k, v = (
        torch.randn(tokens, heads, SIZE, generator=generator)
        for heads in (HEADS, KV_HEADS, KV_HEADS)
    )
    metadata = AttentionMetadata.build(QUERY_LENS, CONTEXT_LENS, TABLES, BLOCK)
    prepared = dropper.prepare(metadata)
    kv = LayerKV(pages.clone())
    return dropper.attend(q, k, v, kv, prepared, scale=0.3, sliding_window=None)


@pytest.fixture
def pages() -> torch.Tensor:
    return torch.randn(26, 2, KV_HEADS, BLOCK, SIZE, generator=torch.Generator().manual_seed(1))


def test_it_is_the_wrapped_backend_while_nothing_is_dropped(pages: torch.Tensor) -> None:
    dropper = PrefixDropper(ReferenceBackend())
    before = attend(dropper, pages)
    dropper.dropped_tokens = 16
    after = attend(dropper, pages)
    assert torch.equal(before[0], after[0])  # the decode
    assert torch.equal(before[8:], after[8:])  # the chunk without a prefix
    assert not torch.allclose(before[1:8], after[1:8], atol=1e-3)


def test_hidden_tokens_have_no_influence_and_all_others_have(pages: torch.Tensor) -> None:
    dropper = PrefixDropper(ReferenceBackend())
    dropper.dropped_tokens = 16
    expected = attend(dropper, pages)[1:8]
    for position in range(33):  # the chunk's prefix
        changed = pages.clone()
        changed[10 + position // BLOCK, :, :, position % BLOCK] += 3.0
        same = torch.allclose(attend(dropper, changed)[1:8], expected)
        assert same is (position >= 33 - 16), position


def test_with_nothing_hidden_its_own_attention_is_the_backends(pages: torch.Tensor) -> None:
    """Dropping from a prefix whose last tokens weigh nothing changes nothing."""
    heavy = pages.clone()
    for position in range(33 - 16, 33):
        heavy[10 + position // BLOCK, 0, :, position % BLOCK] = 0.0
        heavy[10 + position // BLOCK, 1, :, position % BLOCK] = 0.0
    dropper = PrefixDropper(ReferenceBackend())
    dropper.dropped_tokens = 16
    dropped = attend(dropper, heavy)[1:8]
    dropper.dropped_tokens = 0
    whole = attend(dropper, heavy)[1:8]
    # Keys of zero score 0 and values of zero add nothing: all that differs is the normaliser.
    ratio = whole / dropped
    per_head = ratio.mean(-1, keepdim=True).expand_as(ratio)
    assert torch.allclose(ratio, per_head, rtol=1e-3)
    assert bool((ratio < 1).all())
