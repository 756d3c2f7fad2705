"""Llama 2 and 3.x, and models of the same shape such as SmolLM2."""

from __future__ import annotations

from atom_lite.models.family import Config, Family, Traits


def _traits(config: Config) -> Traits:
    bias = bool(config.get("attention_bias", False))
    return Traits(
        attention_bias=bias,
        attention_output_bias=bias,
        mlp_bias=bool(config.get("mlp_bias", False)),
    )


FAMILY = Family(
    architecture="LlamaForCausalLM",
    config_traits=_traits,
    gguf_architecture="llama",
    gguf_permuted_heads=True,
)
