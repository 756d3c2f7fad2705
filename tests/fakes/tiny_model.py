"""A model directory of almost no weights with SmolLM2's vocabulary, for formats that load none."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

TINY_LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 49152,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}


def write_tiny_model(directory: Path, **changes: Any) -> None:
    """Write its config.json, with some values changed or added."""
    (directory / "config.json").write_text(json.dumps(TINY_LLAMA | changes))
