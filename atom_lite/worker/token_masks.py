"""Forbids tokens in logits by bit masks, as the grammar libraries write them.

A mask is one bit per token, 32 to an int32: bit i of a row says whether id i may be drawn. Runs on
the last stage, between the model and the sampler. Must not know of grammars or sequences.

On a CPU the logits of a step lie column-major (`blocked_logits`), and torch's masked_fill takes 25
to 50 ms for 32 rows of 49152 ids in any layout. A minimum with +inf or -inf, made in the layout of
the logits, takes 3 (one busy core of an AMD Zen 3). On an accelerator the bits travel, and are
spread there.

Shapes: R rows, V vocabulary, W = ceil(V / 32) words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

WORD_BITS = 32


def full_masks(num_rows: int, vocab_size: int) -> NDArray[np.int32]:
    """Masks [R, W] that allow everything."""
    return np.full((num_rows, -(-vocab_size // WORD_BITS)), -1, dtype=np.int32)


def allow_only(masks: NDArray[np.int32], row: int, token_ids: tuple[int, ...]) -> None:
    """Make one row allow these ids and no others."""
    masks[row] = 0
    words = masks[row].view(np.uint32)
    for token_id in token_ids:
        words[token_id // WORD_BITS] |= np.uint32(1 << token_id % WORD_BITS)


def forbid(logits: Tensor, masks: NDArray[np.int32]) -> None:
    """Set the logits of ids that a mask forbids to -inf.

    Args:
        logits: [R, V] float32, written; row-major or column-major.
        masks: [R, W] int32.
    """
    if logits.device.type == "cpu":
        _forbid_by_minimum(logits, masks)
    else:
        spread_and_forbid(logits, torch.from_numpy(masks).to(logits.device))


def _forbid_by_minimum(logits: Tensor, masks: NDArray[np.int32]) -> None:
    octets = masks.view(np.uint8)  # little-endian words: id i is bit i % 8 of byte i // 8
    if logits.t().is_contiguous():
        logits, octets, axis = logits.t(), np.ascontiguousarray(octets.T), 0
    else:
        axis = 1
    bits = np.unpackbits(octets, axis=axis, count=logits.shape[axis], bitorder="little")
    limits = torch.from_numpy(bits).float().sub_(0.5).mul_(torch.inf)  # 0 -> -inf, 1 -> inf
    torch.minimum(logits, limits, out=logits)


def spread_and_forbid(logits: Tensor, masks: Tensor) -> None:
    """The same with torch operations alone, on the device of both."""
    shifts = torch.arange(WORD_BITS, dtype=torch.int32, device=masks.device)
    forbidden = (masks.unsqueeze(-1) >> shifts).bitwise_and_(1).logical_not_()
    logits.masked_fill_(forbidden.flatten(1)[:, : logits.shape[1]].bool(), -torch.inf)
