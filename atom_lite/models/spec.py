"""What a model is: its sizes and traits, read from config.json or from GGUF metadata.

Free of torch: the launcher and the frontend read it before any engine exists. What a family adds to
the common shape is in its own file (`llama`, `mistral`, `qwen2`, `qwen3`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any

from atom_lite.errors import ConfigError
from atom_lite.layers.rope_parameters import RopeParameters

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from atom_lite.models.checkpoint import Checkpoint

GENERATION_CONFIG = "generation_config.json"
# what generation_config.json may recommend -> its least value
SAMPLING_DEFAULTS = {
    "temperature": 0,
    "top_p": 0,
    "top_k": -1,
    "min_p": 0,
    "repetition_penalty": 0,
    "max_new_tokens": 1,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A decoder-only model. Sizes are counts of numbers, not bytes."""

    architecture: str  # Hugging Face's class name, such as "LlamaForCausalLM"
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    intermediate_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope: RopeParameters
    tie_word_embeddings: bool
    layer_windows: tuple[int | None, ...]  # per layer, tokens of its sliding window
    attention_bias: bool = False  # of q, k and v
    attention_output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    gguf_permuted_heads: bool = False
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    dtype: str | None = None  # of the checkpoint, such as "bfloat16"

    def __post_init__(self) -> None:
        """Refuse sizes that cannot be a model.

        Raises:
            ConfigError: names the two sizes that do not fit.
        """
        for name in ("vocab_size", "hidden_size", "num_layers", "intermediate_size", "head_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} of the model is {getattr(self, name)}, not at least 1")
        if len(self.layer_windows) != self.num_layers:
            raise ConfigError(
                f"windows of {len(self.layer_windows)} layers in a model of {self.num_layers}"
            )
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"{self.num_heads} attention heads do not divide into {self.num_kv_heads} KV heads"
            )
        if self.head_size % 2:
            raise ConfigError(f"head size {self.head_size}: rotary embedding needs an even one")

    @property
    def group_size(self) -> int:
        """Query heads that share a KV head."""
        return self.num_heads // self.num_kv_heads


def load_spec(checkpoint: Checkpoint) -> ModelSpec:
    """Read the spec of a checkpoint.

    Raises:
        ConfigError: a file is missing or unreadable, or the architecture, quantization or another
            trait is not supported; names it.
    """
    from atom_lite.models import spec_from_config, spec_from_gguf

    if checkpoint.kind == "gguf":
        return spec_from_gguf.read_spec(checkpoint.path)
    return spec_from_config.read_spec(checkpoint.path)


def load_generation_defaults(checkpoint: Checkpoint) -> dict[str, float]:
    """Read the sampling values that the model's makers recommend; empty where they say nothing.

    Raises:
        ConfigError: the file is not readable, or a value is not a number in its range.
    """
    if not checkpoint.path.is_dir():
        return {}
    path = checkpoint.path / GENERATION_CONFIG
    config = read_json(path)
    given = {name: config[name] for name in SAMPLING_DEFAULTS if config.get(name) is not None}
    return checked_defaults(given, str(path))


def checked_defaults(given: Mapping[str, Any], where: str) -> dict[str, float]:
    """Sampling values as numbers.

    Raises:
        ConfigError: a value is not a number in its range, with where it stands.
    """
    for name, value in given.items():
        if not is_number(value) or value < SAMPLING_DEFAULTS[name]:
            raise ConfigError(
                f"{where}: {name} is {value!r}, not a number from {SAMPLING_DEFAULTS[name]} up"
            )
    return {name: float(value) for name, value in given.items()}


def is_number(value: Any) -> bool:
    """Tell a finite number from whatever else a JSON file may hold, true and false included."""
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _without_nulls(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {key: value for key, value in pairs if value is not None}


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; an absent file is an empty one.

    Keys whose value is null are left out, in nested objects too: to every reader null means the
    same as absence, and `get` with a default would hand out the null instead.

    Raises:
        ConfigError: the file is not a JSON object.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_without_nulls)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is not readable: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} must hold a JSON object")
    return content
