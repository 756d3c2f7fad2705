"""Read a `ModelSpec` from Hugging Face's config.json (and generation_config.json)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

from atom_lite.errors import ConfigError
from atom_lite.layers.rope_parameters import RopeParameters, RopeType
from atom_lite.models.families import by_architecture
from atom_lite.models.spec import GENERATION_CONFIG, ModelSpec, read_json

if TYPE_CHECKING:
    from pathlib import Path

    from atom_lite.models.family import Config

_REQUIRED = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
)


def read_spec(directory: Path) -> ModelSpec:
    """Read the spec of a model directory.

    Raises:
        ConfigError: the config is missing, lacks a size, or asks for what is not supported.
    """
    where = str(directory / "config.json")
    config = read_json(directory / "config.json")
    family = by_architecture(list(config.get("architectures") or []), where)
    _refuse_unsupported(config, where)
    traits = family.config_traits(config)
    num_layers, num_heads = config["num_hidden_layers"], config["num_attention_heads"]
    rope = _read_rope(config, where)
    return ModelSpec(
        architecture=family.architecture,
        vocab_size=config["vocab_size"],
        hidden_size=config["hidden_size"],
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=config.get("num_key_value_heads") or num_heads,
        head_size=config.get("head_dim") or config["hidden_size"] // num_heads,
        intermediate_size=config["intermediate_size"],
        max_position_embeddings=_longest_sequence(config, rope),
        rms_norm_eps=config.get("rms_norm_eps", 1e-6),
        rope=rope,
        tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
        layer_windows=traits.layer_windows or (None,) * num_layers,
        attention_bias=traits.attention_bias,
        attention_output_bias=traits.attention_output_bias,
        mlp_bias=traits.mlp_bias,
        qk_norm=traits.qk_norm,
        eos_token_ids=_eos_token_ids(config, read_json(directory / GENERATION_CONFIG)),
        bos_token_id=config.get("bos_token_id"),
        dtype=config.get("dtype") or config.get("torch_dtype"),
    )


def _refuse_unsupported(config: Config, where: str) -> None:
    if missing := [name for name in _REQUIRED if not isinstance(config.get(name), int)]:
        raise ConfigError(f"{where}: {missing[0]} is missing or not a number")
    if quantization := config.get("quantization_config"):
        method = quantization.get("quant_method", "unknown")
        raise ConfigError(f"{where}: quantization {method!r} of safetensors is not supported")
    activation = config.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise ConfigError(f"{where}: activation {activation!r} is not supported, only silu")


def _read_rope(config: Config, where: str) -> RopeParameters:
    """Read `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (before)."""
    scaling: dict[str, Any] = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in get_args(RopeType):
        known = ", ".join(get_args(RopeType))
        raise ConfigError(f"{where}: rope type {kind!r} is not supported; supported are {known}")
    share = scaling.get("partial_rotary_factor", config.get("partial_rotary_factor")) or 1.0
    if share != 1.0:
        raise ConfigError(f"{where}: partial_rotary_factor {share} is not supported, only 1")
    theta = float(scaling.get("rope_theta") or config.get("rope_theta") or 10000.0)
    if kind == "default":
        return RopeParameters(theta=theta)
    original = scaling.get("original_max_position_embeddings") or config.get(
        "original_max_position_embeddings"
    )
    return RopeParameters(
        theta=theta,
        type=kind,
        factor=float(scaling.get("factor") or 1.0),
        original_max_positions=original or _written_positions(config),
        low_frequency_factor=float(scaling.get("low_freq_factor") or 1.0),
        high_frequency_factor=float(scaling.get("high_freq_factor") or 4.0),
        beta_fast=float(scaling.get("beta_fast") or 32.0),
        beta_slow=float(scaling.get("beta_slow") or 1.0),
        truncate=bool(scaling.get("truncate", True)),
        attention_factor=scaling.get("attention_factor"),
        mscale=scaling.get("mscale"),
        mscale_all_dim=scaling.get("mscale_all_dim"),
    )


def _written_positions(config: Config) -> int:
    return int(config.get("max_position_embeddings") or 2048)


def _longest_sequence(config: Config, rope: RopeParameters) -> int:
    """Tokens that the model can take: linear and YaRN scaling stretch what the config says."""
    if rope.type == "linear":
        return int(_written_positions(config) * rope.factor)
    if rope.type == "yarn":
        return int(rope.original_max_positions * rope.factor)
    return _written_positions(config)


def _eos_token_ids(*configs: Config) -> tuple[int, ...]:
    """Join the ids of both files: config.json often lacks the id that ends a chat turn."""
    ids: list[int] = []
    for config in configs:
        value = config.get("eos_token_id")
        if value is not None:
            ids += [value] if isinstance(value, int) else value
    return tuple(dict.fromkeys(ids))
