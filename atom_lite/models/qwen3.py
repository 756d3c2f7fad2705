"""Qwen3 dense: each head of q and k is normalised before the rotation; no biases by default."""

from __future__ import annotations

from atom_lite.models.family import Config, Family, Traits
from atom_lite.models.qwen2 import sliding_layers


def _traits(config: Config) -> Traits:
    bias = bool(config.get("attention_bias", False))
    return Traits(
        attention_bias=bias,
        attention_output_bias=bias,
        qk_norm=True,
        layer_windows=sliding_layers(config),
    )


FAMILY = Family(
    architecture="Qwen3ForCausalLM",
    config_traits=_traits,
    gguf_architecture="qwen3",
    gguf_traits=Traits(qk_norm=True),
)
