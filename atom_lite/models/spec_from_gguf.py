"""Read a `ModelSpec` from the metadata of a GGUF file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atom_lite.errors import ConfigError
from atom_lite.layers.rope_parameters import RopeParameters
from atom_lite.models.families import by_gguf_architecture
from atom_lite.models.gguf_file import GgufFile
from atom_lite.models.spec import ModelSpec

if TYPE_CHECKING:
    from pathlib import Path

# Ids that end a turn: of the text, and of a chat message where that is another token.
_EOS_KEYS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
_ROPE_DIVISORS = "rope_freqs.weight"  # Llama 3's scaling, worked out when the file was made


class _Metadata:
    """Metadata of one architecture: keys without their prefix, and errors that name the key."""

    def __init__(self, file: GgufFile, architecture: str) -> None:
        self._file = file
        self._architecture = architecture

    def get(self, key: str, default: Any = None) -> Any:
        """Look up `<architecture>.<key>`."""
        return self._file.metadata.get(f"{self._architecture}.{key}", default)

    def count(self, key: str) -> int:
        """Look up a required number.

        Raises:
            ConfigError: it is missing, or differs from layer to layer.
        """
        value = self.get(key)
        if not isinstance(value, int):
            what = "is missing" if value is None else f"is {value!r}, not one number"
            raise ConfigError(f"{self._file.path}: {self._architecture}.{key} {what}")
        return value


def read_spec(path: Path) -> ModelSpec:
    """Read the spec of a GGUF file.

    Raises:
        ConfigError: the file is unreadable, lacks a size, or holds what is not supported.
    """
    file = GgufFile(path)
    name = str(file.metadata.get("general.architecture"))
    family = by_gguf_architecture(name, str(path))
    metadata = _Metadata(file, name)
    if metadata.get("expert_count"):
        raise ConfigError(f"{path}: mixture-of-experts files are not supported")
    num_layers, num_heads = metadata.count("block_count"), metadata.count("attention.head_count")
    hidden = metadata.count("embedding_length")
    head_size = metadata.get("attention.key_length", hidden // num_heads)
    window = metadata.get("attention.sliding_window") or None
    return ModelSpec(
        architecture=family.architecture,
        vocab_size=_vocab_size(file),
        hidden_size=hidden,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=metadata.get("attention.head_count_kv", num_heads),
        head_size=head_size,
        intermediate_size=metadata.count("feed_forward_length"),
        max_position_embeddings=metadata.count("context_length"),
        rms_norm_eps=metadata.get("attention.layer_norm_rms_epsilon", 1e-6),
        rope=_read_rope(file, metadata, head_size),
        tie_word_embeddings="output.weight" not in file.tensors,
        layer_windows=(window,) * num_layers,
        attention_bias=family.gguf_traits.attention_bias,
        qk_norm=family.gguf_traits.qk_norm,
        gguf_permuted_heads=family.gguf_permuted_heads,
        eos_token_ids=tuple(
            dict.fromkeys(file.metadata[key] for key in _EOS_KEYS if key in file.metadata)
        ),
        bos_token_id=file.metadata.get("tokenizer.ggml.bos_token_id"),
    )


def _vocab_size(file: GgufFile) -> int:
    """Rows of the embedding; the tokenizer's list may be shorter."""
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ConfigError(f"{file.path}: tensor 'token_embd.weight' is missing")
    return embedding.shape[0]


def _read_rope(file: GgufFile, metadata: _Metadata, head_size: int) -> RopeParameters:
    if metadata.get("rope.dimension_count", head_size) != head_size:
        raise ConfigError(f"{file.path}: rotary embedding of a part of each head is not supported")
    theta = float(metadata.get("rope.freq_base", 10000.0))
    kind = metadata.get("rope.scaling.type", "none")
    if kind == "none":
        divisors = file.read_floats(_ROPE_DIVISORS) if _ROPE_DIVISORS in file.tensors else ()
        return RopeParameters(theta=theta, frequency_divisors=divisors)
    if kind not in ("linear", "yarn"):
        raise ConfigError(
            f"{file.path}: rope type {kind!r} is not supported; supported are none, linear, yarn"
        )
    return RopeParameters(
        theta=theta,
        type=kind,
        factor=float(metadata.get("rope.scaling.factor", 1.0)),
        original_max_positions=metadata.get(
            "rope.scaling.original_context_length", metadata.count("context_length")
        ),
    )
