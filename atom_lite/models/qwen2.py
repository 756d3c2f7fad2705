"""Qwen2 and Qwen2.5: biases on q, k and v; optionally a sliding window in the upper layers."""

from __future__ import annotations

from atom_lite.models.family import Config, Family, Traits


def sliding_layers(config: Config) -> tuple[int | None, ...]:
    """Window of each layer: by `layer_types`, else from layer `max_window_layers` on."""
    window = config.get("sliding_window") if config.get("use_sliding_window") else None
    if window is None:
        return ()
    num_layers = config["num_hidden_layers"]
    if types := config.get("layer_types"):
        return tuple(window if kind == "sliding_attention" else None for kind in types)
    first = config.get("max_window_layers", num_layers)
    return tuple(window if layer >= first else None for layer in range(num_layers))


def _traits(config: Config) -> Traits:
    return Traits(attention_bias=True, layer_windows=sliding_layers(config))


FAMILY = Family(
    architecture="Qwen2ForCausalLM",
    config_traits=_traits,
    gguf_architecture="qwen2",
    gguf_traits=Traits(attention_bias=True),
)
