"""Tiny random models of each family, made by transformers: configs with every supported trait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

if TYPE_CHECKING:
    from pathlib import Path

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,  # far from zero, so that a wrong path shows in the logits
    "tie_word_embeddings": False,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 500.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 500.0, "factor": 3.0}

CONFIGS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**SIZES),
    "llama-tied-llama3-rope": LlamaConfig(
        **SIZES | {"tie_word_embeddings": True}, rope_parameters=LLAMA3_ROPE
    ),
    "llama-biases-linear-rope": LlamaConfig(
        **SIZES, attention_bias=True, mlp_bias=True, rope_parameters=LINEAR_ROPE
    ),
    "mistral-window": MistralConfig(**SIZES, sliding_window=7, head_dim=16),
    "qwen2": Qwen2Config(**SIZES, rope_parameters=YARN_ROPE),
    "qwen2-window": Qwen2Config(
        **SIZES, use_sliding_window=True, sliding_window=9, max_window_layers=1
    ),
    "qwen3": Qwen3Config(**SIZES, head_dim=12),
}


def make_model(config: PreTrainedConfig) -> Any:
    """A model with random weights, biases and norms too."""
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(
        config, attn_implementation="eager", dtype=torch.float32
    ).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:  # zero biases and unit norms would hide a mix-up
                parameter.uniform_(*((-0.5, 0.5) if name.endswith("bias") else (0.5, 1.5)))
    return model


def save(model: Any, directory: Path, shard_size: str = "5GB") -> None:
    model.save_pretrained(directory, max_shard_size=shard_size)
