"""Where weights come from, which ones a model needs, and the check that both agree.

Every format (`load_safetensors`, `load_gguf`, `load_dummy`) is a `WeightSource` that speaks in
Hugging Face's tensor names and reads one tensor at a time, so that the decoder is built layer by
layer and peak memory stays near one copy of the model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from atom_lite.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from atom_lite.models.spec import ModelSpec

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head.weight"

# Buffers that old exports carry and nothing needs: rotary frequencies follow from the config.
HARMLESS_SUFFIXES = (".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias")


class WeightSource(Protocol):
    """One checkpoint's tensors, by Hugging Face name."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name every tensor with its shape, without reading it."""

    def read(self, name: str) -> torch.Tensor:
        """Read one tensor, on the device that the source was opened for.

        Matrices come in the type that it was opened for, vectors (norms, biases) in float32.
        """


def expected_tensors(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Every tensor that a model of this spec needs, with its shape."""
    hidden = spec.hidden_size
    tensors: dict[str, tuple[int, ...]] = {
        EMBEDDING: (spec.vocab_size, hidden),
        FINAL_NORM: (hidden,),
    }
    if not spec.tie_word_embeddings:
        tensors[HEAD] = (spec.vocab_size, hidden)
    for layer in range(spec.num_layers):
        prefix = f"model.layers.{layer}."
        tensors |= {prefix + name: shape for name, shape in _layer_tensors(spec).items()}
    return tensors


def _layer_tensors(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    hidden, ffn = spec.hidden_size, spec.intermediate_size
    queries, keys = spec.num_heads * spec.head_size, spec.num_kv_heads * spec.head_size
    matrices = {
        "self_attn.q_proj": (queries, hidden, spec.attention_bias),
        "self_attn.k_proj": (keys, hidden, spec.attention_bias),
        "self_attn.v_proj": (keys, hidden, spec.attention_bias),
        "self_attn.o_proj": (hidden, queries, spec.attention_output_bias),
        "mlp.gate_proj": (ffn, hidden, spec.mlp_bias),
        "mlp.up_proj": (ffn, hidden, spec.mlp_bias),
        "mlp.down_proj": (hidden, ffn, spec.mlp_bias),
    }
    tensors: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    if spec.qk_norm:
        tensors["self_attn.q_norm.weight"] = (spec.head_size,)
        tensors["self_attn.k_norm.weight"] = (spec.head_size,)
    for name, (rows, columns, has_bias) in matrices.items():
        tensors[f"{name}.weight"] = (rows, columns)
        if has_bias:
            tensors[f"{name}.bias"] = (rows,)
    return tensors


def check_tensors(found: dict[str, tuple[int, ...]], spec: ModelSpec, where: str) -> None:
    """Compare a checkpoint with what its config asks for.

    Raises:
        ConfigError: a tensor is missing, misshapen or not known; names the first and counts them.
    """
    expected = expected_tensors(spec)
    if missing := [name for name in expected if name not in found]:
        raise ConfigError(f"{where}: tensor {missing[0]!r} is missing{_others(missing)}")
    for name, shape in expected.items():
        if found[name] != shape:
            raise ConfigError(
                f"{where}: tensor {name!r} has shape {list(found[name])}, "
                f"its config asks for {list(shape)}"
            )
    extra = [name for name in found if name not in expected and not _harmless(name, spec)]
    if extra:
        raise ConfigError(
            f"{where}: tensor {extra[0]!r} is not part of a {spec.architecture}{_others(extra)}"
        )


def _harmless(name: str, spec: ModelSpec) -> bool:
    return name.endswith(HARMLESS_SUFFIXES) or (name == HEAD and spec.tie_word_embeddings)


def _others(names: list[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""
