"""Expand GGUF's block-quantized tensors with torch.

The common formats are expanded here. The `gguf` package does the same in numpy on one thread (70 to
100 M numbers a second), equal to the last bit in float32: the tests' oracle, and what the rarer
formats go through. Blocks are expanded some at a time, so no second copy of a large tensor exists.

Legend: n blocks; a block of the K formats holds 256 numbers, of the others 32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import torch

from atom_lite.layers.grouped_weight import GroupedWeight

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from atom_lite.models.gguf_file import GgufFile, GgufTensor

Groups: TypeAlias = "tuple[Tensor, Tensor, Tensor | None]"

# Numbers expanded at once: the float32 intermediates stay around the size of the last-level cache.
_CHUNK_NUMBERS = 1 << 21


def read_tensor(file: GgufFile, tensor: GgufTensor, dtype: torch.dtype) -> Tensor:
    """Read and expand one tensor into fresh memory of the given type."""
    stored = file.format_of(tensor)
    offset, length = file.span(tensor)
    raw = torch.frombuffer(file.data, dtype=torch.uint8, offset=offset, count=length)
    if stored.name in _PLAIN:
        values = raw.view(_PLAIN[stored.name]).view(tensor.shape)
        return values.to(dtype, copy=True)
    blocks = raw.view(-1, stored.block_bytes)
    out = torch.empty(blocks.shape[0], stored.block_size, dtype=dtype)
    step = _CHUNK_NUMBERS // stored.block_size
    expand = _EXPAND.get(stored.name) or _by_package(stored.name)
    for first in range(0, blocks.shape[0], step):
        out[first : first + step] = expand(blocks[first : first + step])
    return out.view(tensor.shape)


def read_groups(file: GgufFile, tensor: GgufTensor) -> GroupedWeight | None:
    """Read one matrix as it is stored; None where its format is not one of groups we keep."""
    stored = file.format_of(tensor)
    if stored.name not in _SPLIT or len(tensor.shape) != 2:
        return None
    offset, length = file.span(tensor)
    raw = torch.frombuffer(file.data, dtype=torch.uint8, offset=offset, count=length)
    quants, scale, minimum = _SPLIT[stored.name](raw.view(-1, stored.block_bytes))
    rows = tensor.shape[0]
    return GroupedWeight(
        quants.to(torch.int8).view(tensor.shape),
        scale.reshape(rows, -1),
        None if minimum is None else minimum.reshape(rows, -1),
        _BITS[stored.name],
    )


def expands_by_package(name: str) -> bool:
    """Tell whether a format is one of the rarer ones, which numpy expands on one thread."""
    return name not in _PLAIN and name not in _EXPAND


def _by_package(name: str) -> Callable[[Tensor], Tensor]:
    """Give the `gguf` package's own expansion of a format that is not in `_EXPAND`."""
    from gguf import GGMLQuantizationType, quants

    def expand(blocks: Tensor) -> Tensor:
        # as one row of many blocks: the package works on 16 rows at a time
        values = quants.dequantize(blocks.numpy().reshape(1, -1), GGMLQuantizationType[name])
        return torch.from_numpy(values).view(blocks.shape[0], -1)

    return expand


def _half(blocks: Tensor, start: int) -> Tensor:
    """Read the float16 at byte `start` of each block, as float32 [n, 1]."""
    return blocks[:, start : start + 2].view(torch.float16).float()


def _nibbles(packed: Tensor) -> Tensor:
    """Split bytes: the low halves of all come first, then the high ones."""
    return torch.cat((packed & 15, packed >> 4), dim=-1)


def _q4_0(blocks: Tensor) -> Groups:
    return _nibbles(blocks[:, 2:]).to(torch.int8) - 8, _half(blocks, 0), None


def _q4_1(blocks: Tensor) -> Groups:
    return _nibbles(blocks[:, 4:]), _half(blocks, 0), _half(blocks, 2)


def _q8_0(blocks: Tensor) -> Groups:
    return blocks[:, 2:].contiguous().view(torch.int8), _half(blocks, 0), None


def _q4_k(blocks: Tensor) -> Groups:
    """Split 8 sub-blocks of 32 with a 6-bit scale and minimum each."""
    low, middle, high = blocks[:, 4:16].view(-1, 3, 4).unbind(1)  # each [n, 4]
    scales = torch.cat((low & 63, (high & 15) | ((low >> 6) << 4)), dim=-1)
    minima = torch.cat((middle & 63, (high >> 4) | ((middle >> 6) << 4)), dim=-1)
    scale = _half(blocks, 0) * scales.float()  # [n, 8]
    minimum = _half(blocks, 2) * minima.float()
    return _nibbles(blocks[:, 16:].view(-1, 4, 32)).flatten(1), scale, -minimum


def _q6_k(blocks: Tensor) -> Groups:
    """Split 16 sub-blocks of 16 with an 8-bit scale each; a number's high 2 bits lie apart."""
    low = blocks[:, :128].view(-1, 2, 2, 32)
    low = torch.cat((low & 15, low >> 4), dim=2)  # [n, 2, 4, 32]
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8).view(1, 1, 4, 1)
    high = (blocks[:, 128:192].view(-1, 2, 1, 32) >> shifts) & 3
    quants = ((high << 4) | low).flatten(1).to(torch.int8) - 32
    return quants, _half(blocks, 208) * blocks[:, 192:208].view(torch.int8).float(), None


def _expand(split: Callable[[Tensor], Groups]) -> Callable[[Tensor], Tensor]:
    def expand(blocks: Tensor) -> Tensor:
        quants, scale, minimum = split(blocks)
        values = quants.float().view(*scale.shape, -1) * scale.unsqueeze(-1)
        if minimum is not None:
            values += minimum.unsqueeze(-1)
        return values.flatten(1)

    return expand


_PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
# format -> small integers [n, numbers], and scale and minimum [n, groups] of a block
_SPLIT: dict[str, Callable[[Tensor], Groups]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q6_K": _q6_k,
}
_EXPAND = {name: _expand(split) for name, split in _SPLIT.items()}
_BITS = {"Q4_0": 4, "Q4_1": 4, "Q8_0": 8, "Q4_K": 4, "Q6_K": 8}
