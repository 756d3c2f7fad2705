"""Read a `ModelSpec` from Hugging Face's config.json (and generation_config.json)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

from atom_lite.errors import ConfigError
from atom_lite.layers.rope_parameters import RopeParameters, RopeType
from atom_lite.models.families import by_architecture
from atom_lite.models.spec import GENERATION_CONFIG, ModelSpec, is_number, read_json

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
# The kinds of what is read here and by the families, where it is there; null is as good as absent.
_COUNTS = (
    *_REQUIRED,
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "original_max_position_embeddings",
    "sliding_window",
)
_NUMBERS = ("rms_norm_eps", "rope_theta", "partial_rotary_factor")
_OTHERS: dict[str, type | tuple[type, ...]] = {
    "architectures": list,
    "quantization_config": dict,
    "hidden_act": str,
    "rope_parameters": dict,
    "rope_scaling": dict,
    "layer_types": list,
    "max_window_layers": int,
    "eos_token_id": (int, list),
    "dtype": str,
    "torch_dtype": str,
}
_ROPE_NUMBERS = (
    *("rope_theta", "partial_rotary_factor", "factor", "low_freq_factor", "high_freq_factor"),
    *("beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim"),
)


def read_spec(directory: Path) -> ModelSpec:
    """Read the spec of a model directory.

    Raises:
        ConfigError: the config is missing, lacks a size, or asks for what is not supported.
    """
    where = str(directory / "config.json")
    config = read_json(directory / "config.json")
    _check_kinds(config, where)
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


def _check_kinds(config: Config, where: str) -> None:
    """See that every value is of the kind that the code below takes it for."""
    _check_counts(config, _COUNTS, where)
    _check_numbers(config, _NUMBERS, where)
    for name, kinds in _OTHERS.items():
        value = config.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, kinds)):
            raise ConfigError(f"{where}: {name} is {value!r}, which is of another kind than known")
    for key in ("rope_parameters", "rope_scaling"):
        scaling = config.get(key) or {}
        _check_numbers(scaling, _ROPE_NUMBERS, f"{where}: {key}")
        _check_counts(scaling, ("original_max_position_embeddings",), f"{where}: {key}")


def _check_counts(config: Config, names: tuple[str, ...], where: str) -> None:
    for name in names:
        value = config.get(name)
        if value is not None and (not isinstance(value, int) or value is True or value < 1):
            raise ConfigError(f"{where}: {name} is {value!r}, not a whole number from 1 up")


def _check_numbers(config: Config, names: tuple[str, ...], where: str) -> None:
    for name in names:
        value = config.get(name)
        if value is not None and (not is_number(value) or value < 0):
            raise ConfigError(f"{where}: {name} is {value!r}, not a number from 0 up")


def _refuse_unsupported(config: Config, where: str) -> None:
    if missing := [name for name in _REQUIRED if config.get(name) is None]:
        raise ConfigError(f"{where}: {missing[0]} is missing")
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
        ids += value if isinstance(value, list) else [] if value is None else [value]
    if wrong := [item for item in ids if type(item) is not int]:
        raise ConfigError(f"eos_token_id holds {wrong[0]!r}, which is no token id")
    return tuple(dict.fromkeys(ids))
