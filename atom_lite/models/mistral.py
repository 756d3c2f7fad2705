"""Mistral: Llama with a sliding window in every layer (later releases dropped the window).

Its GGUF files call themselves llama, and are read as such.
"""

from __future__ import annotations

from atom_lite.models.family import Config, Family, Traits


def _traits(config: Config) -> Traits:
    window = config.get("sliding_window")
    return Traits(layer_windows=(window,) * config["num_hidden_layers"])


FAMILY = Family(architecture="MistralForCausalLM", config_traits=_traits)
