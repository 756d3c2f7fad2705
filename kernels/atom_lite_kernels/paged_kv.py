"""The paged KV cache of one layer, and what its types mean, in plain torch.

Read by the reference, by the backends' torch paths and by the wrappers of the CPU kernels. Pages
may hold another type than the step's queries, keys and values have:

    type             a number is                              bytes of a head of 64
    float32          itself                                   256
    bfloat16         rounded                                  128
    int8             stored * scale, stored in [-127, 127]     64 + 4
    float8_e4m3fn    stored * scale, stored up to 448          64 + 4

A scale belongs to one token and head and is float32. So it is known when the token is stored,
whatever was stored before it: a scale for a whole block would depend on how a prompt was cut.

Legend: N KV blocks, S slots of a block, Hk KV heads, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# The largest number that a scaled type stores.
_MOST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
_LEAST_SCALE = torch.finfo(torch.float32).tiny  # its inverse is finite


@dataclass(frozen=True, slots=True)
class LayerKV:
    """The KV cache of one layer.

    Attributes:
        pages: [N, 2, Hk, S, D], keys at [:, 0], values at [:, 1].
        scales: [N, 2, Hk, S] float32 of a scaled type, else None.
    """

    pages: Tensor
    scales: Tensor | None = None


def is_scaled(dtype: torch.dtype) -> bool:
    """Whether numbers of this type are stored with a scale."""
    return dtype in _MOST


def finite(kv: Tensor) -> Tensor:
    """Keys or values as the cache may hold them, in memory of their own: infinities and NaN are 0.

    Kernels hide slots by a weight of 0, and 0 * NaN is NaN. So one sequence whose activations
    overflow would ruin others: those that get its blocks later (they read a last block's unused
    slots), and, as a row's future is hidden in the same way, those that share its prefix.
    """
    return torch.nan_to_num(kv, nan=0.0, posinf=0.0, neginf=0.0)


def as_stored(kv: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """Keys or values [..., D] as pages of `dtype` hold them, and the scales [...] of a scaled type.

    Always finite: what a narrower type cannot hold becomes its largest number.
    """
    kept = finite(kv)
    if not is_scaled(dtype):
        if dtype != kept.dtype:
            most = min(torch.finfo(dtype).max, torch.finfo(kept.dtype).max)
            kept = kept.clamp(-most, most).to(dtype)
        return kept, None
    kept = kept.float()
    most = _MOST[dtype]
    scales = (kept.abs().amax(dim=-1) / most).clamp(min=_LEAST_SCALE)
    numbers = (kept * scales.reciprocal()[..., None]).clamp(-most, most)
    return (numbers.round() if dtype == torch.int8 else numbers).to(dtype), scales


def as_numbers(stored: Tensor, scales: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Undo `as_stored`, but for its rounding: [..., D] in `dtype`, with scales [...]."""
    if scales is None:
        return stored.to(dtype)
    return (stored.to(scales.dtype) * scales[..., None]).to(dtype)
