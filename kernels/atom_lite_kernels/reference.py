"""Plain-torch references: the meaning of each kernel, written to be checked by eye.

One sequence, one head, one row at a time where that is clearer; computed in float64 so that a
kernel's own rounding shows. Slow by intent: tests and `--attention-backend reference` run it.

Legend: T tokens of the step, B sequences of the step, N KV blocks, S slots (tokens) of a block,
Hq / Hk query / KV heads, D head size.

    pages [N, 2, Hk, S, D]   keys are pages[:, 0], values pages[:, 1]
"""

from __future__ import annotations

import torch
from torch import Tensor

from atom_lite_kernels.paged_kv import LayerKV, as_numbers, as_stored


def store_kv(
    kv: LayerKV,  # written
    keys: Tensor,  # [T, Hk, D], read
    values: Tensor,  # [T, Hk, D], read
    slot_mapping: Tensor,  # [T], block id * S + offset in the block
) -> None:
    """Write the keys and values of the step's tokens into their slots; infinities and NaN as 0.

    So what one sequence overflows into stays its own: kernels hide slots by a weight of 0, and
    0 * NaN is NaN.
    """
    block_size = kv.pages.shape[3]
    for which, given in enumerate((keys, values)):
        stored, scales = as_stored(given, kv.pages.dtype)
        for token, slot in enumerate(slot_mapping.tolist()):
            block, offset = divmod(slot, block_size)
            kv.pages[block, which, :, offset] = stored[token]
            if kv.scales is not None and scales is not None:
                kv.scales[block, which, :, offset] = scales[token]


def paged_attention(
    queries: Tensor,  # [T, Hq, D], read
    kv: LayerKV,  # read
    query_lens: list[int],  # B
    context_lens: list[int],  # B, tokens up to and with this step's
    block_tables: Tensor,  # [B, most blocks of a sequence]
    *,
    scale: float,
    sliding_window: int | None = None,
) -> Tensor:
    """Causal attention of each sequence's new tokens over its paged context.

    Query i of a sequence with c context tokens and x new ones stands at position p = c - x + i. It
    sees positions (p - window, p], or [0, p] without a window.

    Returns:
        [T, Hq, D] in the type of `queries`.
    """
    group = queries.shape[1] // kv.pages.shape[2]
    outputs = []
    first = 0
    for row, (num_new, context) in enumerate(zip(query_lens, context_lens, strict=True)):
        keys, values = gather_context(kv, block_tables[row], context)  # [Hk, context, D]
        keys = keys.repeat_interleave(group, dim=0)
        values = values.repeat_interleave(group, dim=0)
        query = queries[first : first + num_new].double().transpose(0, 1)  # [Hq, x, D]
        scores = query @ keys.transpose(1, 2) * scale  # [Hq, x, context]
        position = torch.arange(context - num_new, context, device=queries.device)[:, None]
        key_position = torch.arange(context, device=queries.device)[None, :]
        visible = key_position <= position
        if sliding_window is not None:
            visible &= key_position > position - sliding_window
        scores = scores.masked_fill(~visible, float("-inf"))
        outputs.append((scores.softmax(dim=-1) @ values).transpose(0, 1))
        first += num_new
    return torch.cat(outputs).to(queries.dtype)


def gather_context(kv: LayerKV, block_table: Tensor, context: int) -> tuple[Tensor, Tensor]:
    """Copy a sequence's keys and values [Hk, context, D] out of the pages, as float64."""
    _, _, num_kv_heads, block_size, head_size = kv.pages.shape
    blocks = block_table[: -(-context // block_size)].long()
    scales = None if kv.scales is None else kv.scales[blocks].double()
    taken = as_numbers(kv.pages[blocks].double(), scales, torch.float64)  # [blocks, 2, Hk, S, D]
    flat = taken.permute(1, 2, 0, 3, 4).reshape(2, num_kv_heads, -1, head_size)
    return flat[0, :, :context], flat[1, :, :context]


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Divide each row by its root mean square, then multiply by the weight."""
    exact = x.double()
    scaled = exact * torch.rsqrt(exact.square().mean(dim=-1, keepdim=True) + epsilon)
    return (scaled * weight.double()).to(x.dtype)


def rotate(x: Tensor, positions: Tensor, inverse_frequencies: Tensor) -> Tensor:
    """Rotate x [T, H, D] to positions [T]: dimension i turns with dimension i + D/2."""
    angle = (positions.double()[:, None] * inverse_frequencies.double())[:, None, :]  # [T, 1, D/2]
    first, second = x.double().chunk(2, dim=-1)
    rotated = (
        first * angle.cos() - second * angle.sin(),
        second * angle.cos() + first * angle.sin(),
    )
    return torch.cat(rotated, dim=-1).to(x.dtype)


def silu_and_multiply(gate_up: Tensor) -> Tensor:
    """silu(gate) * up, where each row of `gate_up` holds the gate, then as many up values."""
    gate, up = gate_up.double().chunk(2, dim=-1)
    return (gate * gate.sigmoid() * up).to(gate_up.dtype)
