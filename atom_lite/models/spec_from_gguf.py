"""Read a `ModelSpec` from the metadata of a GGUF file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atom_lite.errors import ConfigError
from atom_lite.layers.rope_parameters import RopeParameters
from atom_lite.models.families import by_gguf_architecture
from atom_lite.models.gguf_file import GgufFile
from atom_lite.models.spec import ModelSpec, is_number

if TYPE_CHECKING:
    from pathlib import Path

# Ids that end a turn: of the text, of a chat message, and of one that calls a tool.
_EOS_KEYS = tuple(f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom"))
_ROPE_DIVISORS = "rope_freqs.weight"  # Llama 3's scaling, worked out when the file was made


class _Metadata:
    """Metadata of one architecture: keys without their prefix, and errors that name the key."""

    def __init__(self, file: GgufFile, architecture: str) -> None:
        self._file = file
        self._architecture = architecture

    def get(self, key: str, default: Any = None) -> Any:
        """Look up `<architecture>.<key>`."""
        return self._file.metadata.get(f"{self._architecture}.{key}", default)

    def count(self, key: str, default: int | None = None) -> int:
        """Look up a number of things, at least 1; required unless there is a default.

        Raises:
            ConfigError: it is missing, or differs from layer to layer.
        """
        value = self.get(key, default)
        if not isinstance(value, int) or value < 1:
            what = "is missing" if value is None else f"is {value!r}, not one number from 1 up"
            raise ConfigError(f"{self._file.path}: {self._architecture}.{key} {what}")
        return value

    def number(self, key: str, default: float) -> float:
        """Look up a number.

        Raises:
            ConfigError: it is none.
        """
        value = self.get(key, default)
        if not is_number(value) or value < 0:
            what = f"is {value!r}, not a number from 0 up"
            raise ConfigError(f"{self._file.path}: {self._architecture}.{key} {what}")
        return float(value)


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
    head_size = metadata.count("attention.key_length", hidden // num_heads)
    window = int(metadata.number("attention.sliding_window", 0)) or None
    return ModelSpec(
        architecture=family.architecture,
        vocab_size=_vocab_size(file),
        hidden_size=hidden,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=metadata.count("attention.head_count_kv", num_heads),
        head_size=head_size,
        intermediate_size=metadata.count("feed_forward_length"),
        max_position_embeddings=metadata.count("context_length"),
        rms_norm_eps=metadata.number("attention.layer_norm_rms_epsilon", 1e-6),
        rope=_read_rope(file, metadata, head_size),
        tie_word_embeddings="output.weight" not in file.tensors,
        layer_windows=(window,) * num_layers,
        attention_bias=family.gguf_traits.attention_bias,
        qk_norm=family.gguf_traits.qk_norm,
        gguf_permuted_heads=family.gguf_permuted_heads,
        eos_token_ids=_eos_token_ids(file),
        bos_token_id=file.metadata.get("tokenizer.ggml.bos_token_id"),
    )


def _eos_token_ids(file: GgufFile) -> tuple[int, ...]:
    ids = {key: file.metadata[key] for key in _EOS_KEYS if key in file.metadata}
    for key, value in ids.items():
        if not isinstance(value, int):
            raise ConfigError(f"{file.path}: {key} is {value!r}, which is no token id")
    return tuple(dict.fromkeys(ids.values()))


def _vocab_size(file: GgufFile) -> int:
    """Rows of the embedding; the tokenizer's list may be shorter."""
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or not embedding.shape:
        raise ConfigError(f"{file.path}: tensor 'token_embd.weight' is missing or a single number")
    return embedding.shape[0]


def _read_rope(file: GgufFile, metadata: _Metadata, head_size: int) -> RopeParameters:
    if metadata.get("rope.dimension_count", head_size) != head_size:
        raise ConfigError(f"{file.path}: rotary embedding of a part of each head is not supported")
    theta = metadata.number("rope.freq_base", 10000.0)
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
        factor=metadata.number("rope.scaling.factor", 1.0),
        original_max_positions=metadata.count(
            "rope.scaling.original_context_length", metadata.count("context_length")
        ),
    )
