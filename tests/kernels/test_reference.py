"""The references say what is right, so they are checked against torch's own operators."""

from __future__ import annotations

import pytest
import torch

from atom_lite_kernels import reference
from atom_lite_kernels.paged_kv import LayerKV

HEADS, KV_HEADS, SIZE, BLOCK = 6, 2, 8, 4


def filled_pages(
    context: int, blocks: list[int]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Pages that hold `context` random tokens in the given blocks, and NaN everywhere else."""
    keys, values = torch.randn(2, context, KV_HEADS, SIZE)
    pages = torch.full((9, 2, KV_HEADS, BLOCK, SIZE), float("nan"))
    slots = [blocks[p // BLOCK] * BLOCK + p % BLOCK for p in range(context)]
    reference.store_kv(LayerKV(pages), keys, values, torch.tensor(slots))
    return pages, keys, values


@pytest.mark.parametrize("new", [1, 3, 11])
def test_attention_equals_torch_on_contiguous_keys(new: int) -> None:
    context, blocks = 11, [5, 0, 8]
    pages, keys, values = filled_pages(context, blocks)
    queries = torch.randn(new, HEADS, SIZE)
    out = reference.paged_attention(
        queries, LayerKV(pages), [new], [context], torch.tensor([blocks]), scale=0.3
    )
    mask = torch.ones(new, context, dtype=torch.bool).tril(context - new)
    expected = torch.nn.functional.scaled_dot_product_attention(
        queries.transpose(0, 1),
        keys.transpose(0, 1),
        values.transpose(0, 1),
        attn_mask=mask,
        scale=0.3,
        enable_gqa=True,
    ).transpose(0, 1)
    torch.testing.assert_close(out, expected)


def test_a_window_hides_what_lies_before_it() -> None:
    """A window of 3 sees exactly the last three keys: the same as a context that begins there."""
    pages, keys, values = filled_pages(11, [5, 0, 8])
    query = torch.randn(1, HEADS, SIZE)
    windowed = reference.paged_attention(
        query, LayerKV(pages), [1], [11], torch.tensor([[5, 0, 8]]), scale=1.0, sliding_window=3
    )
    short = LayerKV(torch.zeros_like(pages))
    reference.store_kv(short, keys[-3:], values[-3:], torch.arange(3))
    expected = reference.paged_attention(query, short, [1], [3], torch.tensor([[0]]), scale=1.0)
    torch.testing.assert_close(windowed, expected)


def test_rows_of_a_step_do_not_see_each_other() -> None:
    pages, _, _ = filled_pages(11, [5, 0, 8])
    more, _, _ = filled_pages(7, [1, 2])
    pages[[1, 2]] = more[[1, 2]]
    queries = torch.randn(5, HEADS, SIZE)
    tables = torch.tensor([[5, 0, 8], [1, 2, 0]])
    together = reference.paged_attention(
        queries, LayerKV(pages), [1, 4], [11, 7], tables, scale=1.0
    )
    first = reference.paged_attention(queries[:1], LayerKV(pages), [1], [11], tables[:1], scale=1.0)
    second = reference.paged_attention(queries[1:], LayerKV(pages), [4], [7], tables[1:], scale=1.0)
    torch.testing.assert_close(together, torch.cat((first, second)))


def test_rms_norm_equals_torch() -> None:
    x, weight = torch.randn(5, 16), torch.randn(16)
    expected = torch.nn.functional.rms_norm(x, (16,), weight, 1e-5)
    torch.testing.assert_close(reference.rms_norm(x, weight, 1e-5), expected)


def test_rotation_turns_each_pair_by_its_angle() -> None:
    x = torch.randn(3, 2, 6)
    frequencies = torch.tensor([1.0, 0.1, 0.01])
    positions = torch.tensor([0, 4, 1000])
    pairs = torch.complex(x[..., :3].double(), x[..., 3:].double())
    turned = pairs * torch.exp(1j * positions[:, None, None] * frequencies.double())
    expected = torch.cat((turned.real, turned.imag), dim=-1).float()
    torch.testing.assert_close(reference.rotate(x, positions, frequencies), expected)


def test_silu_and_multiply_takes_the_gate_first() -> None:
    gate, up = torch.randn(2, 5, 7)
    expected = torch.nn.functional.silu(gate) * up
    result = reference.silu_and_multiply(torch.cat((gate, up), dim=-1))
    torch.testing.assert_close(result, expected)
