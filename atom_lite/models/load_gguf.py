"""Weights out of a GGUF file, under Hugging Face's names and in their order of rows.

Files of the Llama family hold the rows of q and k in the order of interleaved rotary pairs; they
are put back into the "rotate half" order that `layers.rope` and every other checkpoint use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from atom_lite.models import gguf_blocks, weights_cache
from atom_lite.models.gguf_file import GgufFile

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from atom_lite.layers.grouped_weight import GroupedWeight
    from atom_lite.models.spec import ModelSpec
    from atom_lite.models.weights import WeightSource

_TOP_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# Not a weight: `models.spec` has read it as part of the rotary parameters.
_READ_BY_SPEC = ("rope_freqs.weight",)


class GgufWeights:
    """A `WeightSource` over one GGUF file.

    Args:
        path: the file.
        spec: the model; says whether q and k rows are to be un-permuted.
        dtype: type of the matrices that `read` gives.
        device: where they go.
    """

    def __init__(
        self, path: Path, spec: ModelSpec, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._file = GgufFile(path)
        self._spec = spec
        self._dtype = dtype
        self._device = device
        self._tensors = {
            hf_name(name): tensor
            for name, tensor in self._file.tensors.items()
            if name not in _READ_BY_SPEC
        }

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name every tensor with its shape; an unreadable quantization is found here."""
        for tensor in self._tensors.values():
            self._file.format_of(tensor)
        return {name: tensor.shape for name, tensor in self._tensors.items()}

    def cached(self, limit_bytes: int) -> WeightSource:
        """The same weights through the cache on disk, where that is worth it.

        It is for the rarer formats, which the `gguf` package expands. What torch expands or only
        rounds takes no longer than reading it from the cache: SmolLM2-135M to bfloat16 on two Zen 3
        cores 0.76 s in Q4_1 and 1.85 s in Q5_1, from the cache 0.65 s.
        """
        formats = {self._file.format_of(tensor).name for tensor in self._tensors.values()}
        is_slow = any(gguf_blocks.expands_by_package(name) for name in formats)
        if limit_bytes == 0 or self._device.type != "cpu" or not is_slow:
            return self
        spec = self._spec
        rows = (spec.gguf_permuted_heads, spec.num_heads, spec.num_kv_heads)
        key = weights_cache.entry_key(self._file.data, self._dtype, *rows)
        folder = weights_cache.cache_folder()
        return weights_cache.cached(self, key, self._dtype, folder=folder, limit_bytes=limit_bytes)

    def read(self, name: str) -> Tensor:
        """Expand one tensor."""
        tensor = self._tensors[name]
        dtype = self._dtype if len(tensor.shape) > 1 else torch.float32
        values = gguf_blocks.read_tensor(self._file, tensor, dtype)
        if self._spec.gguf_permuted_heads:
            if ".q_proj." in name:
                values = _rotate_half_order(values, self._spec.num_heads)
            elif ".k_proj." in name:
                values = _rotate_half_order(values, self._spec.num_kv_heads)
        return values.to(self._device)

    def read_groups(self, name: str) -> GroupedWeight | None:
        """Give a matrix as the file holds it; None where it is not in groups that we keep."""
        groups = gguf_blocks.read_groups(self._file, self._tensors[name])
        if groups is None or not self._spec.gguf_permuted_heads:
            return groups
        for kind, num_heads in (("q", self._spec.num_heads), ("k", self._spec.num_kv_heads)):
            if f".{kind}_proj." in name:
                return groups.rows(_rotate_half_order(torch.arange(len(groups.quants)), num_heads))
        return groups


def hf_name(name: str) -> str:
    """Translate a GGUF tensor name; one without a translation is kept, and so reported by name."""
    stem, _, kind = name.rpartition(".")
    if stem in _TOP_NAMES:
        return f"{_TOP_NAMES[stem]}.{kind}"
    parts = stem.split(".")
    if len(parts) == 3 and parts[0] == "blk" and parts[2] in _LAYER_NAMES:
        return f"model.layers.{parts[1]}.{_LAYER_NAMES[parts[2]]}.{kind}"
    return name


def _rotate_half_order(values: Tensor, num_heads: int) -> Tensor:
    """Undo the conversion's permutation of a head's rows (0, D/2, 1, D/2 + 1, ...)."""
    paired = values.view(num_heads, -1, 2, *values.shape[1:])  # [H, D/2, 2, ...]
    return paired.transpose(1, 2).reshape(values.shape)
