"""Which types a model is stored and computed in, and whether its matrices are quantized."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

import torch

from atom_lite.errors import ConfigError
from atom_lite.layers.linear import has_panels

if TYPE_CHECKING:
    from atom_lite.models.spec import ModelSpec

# How matrices are held: as numbers of a type, as their GGUF file holds them, or rounded by us.
Quantization: TypeAlias = Literal["none", "gguf", "int8", "int4"]
QUANTIZATIONS = ("auto", "none", "int8", "int4")

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class ModelTypes:
    """The types of a model's numbers.

    Attributes:
        weights: of the matrices in memory.
        activations: of everything that flows: the residual stream, the hidden states between
            stages, keys and values as they are made; and of norms and biases.
        quantization: of the matrices; `weights` is the type of those that have none.
    """

    weights: torch.dtype
    activations: torch.dtype
    quantization: Quantization = "none"

    @staticmethod
    def of(weights: torch.dtype, device: torch.device) -> ModelTypes:
        """Types of a model whose weights are stored so: our kernels on a CPU compute in float32."""
        return ModelTypes(weights, torch.float32 if has_panels(weights, device) else weights)


def choose_types(name: str, device: torch.device, spec: ModelSpec) -> ModelTypes:
    """Turn `--dtype` into types.

    `auto` is, on a CPU, bfloat16 with our kernels, which are bound by reading the weights, or where
    the CPU multiplies in bfloat16 (elsewhere torch emulates that type, six times slower than
    float32); on an accelerator, the checkpoint's own half type.

    Raises:
        ConfigError: the name is unknown.
    """
    if name != "auto" and name not in _DTYPES:
        raise ConfigError(f"--dtype {name!r} is unknown; use auto, {', '.join(_DTYPES)}")
    weights = _automatic(device, spec) if name == "auto" else _DTYPES[name]
    return ModelTypes.of(weights, device)


def _automatic(device: torch.device, spec: ModelSpec) -> torch.dtype:
    if device.type == "cpu":
        native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
        return torch.bfloat16 if native or has_panels(torch.bfloat16, device) else torch.float32
    stored = _DTYPES.get(spec.dtype or "", torch.bfloat16)
    if stored == torch.float16 or (device.type == "cuda" and not torch.cuda.is_bf16_supported()):
        return torch.float16
    return torch.bfloat16


def choose_quantization(
    name: str, dtype_name: str, types: ModelTypes, device: torch.device, *, is_gguf: bool
) -> ModelTypes:
    """Turn `--quantization` into how matrices are held, beside the types that `--dtype` gave.

    `auto` leaves a GGUF file quantized where our kernels serve and `--dtype` asks for no type.

    Raises:
        ConfigError: the name is unknown, or the device or `--dtype` does not go with it.
    """
    if name not in QUANTIZATIONS:
        known = ", ".join(QUANTIZATIONS)
        raise ConfigError(f"--quantization {name!r} is unknown; use {known}")
    if name == "auto":
        keeps = is_gguf and dtype_name == "auto" and has_panels(types.weights, device)
        return replace(types, quantization="gguf" if keeps else "none")
    if name == "none":
        return types
    if device.type != "cpu":
        raise ConfigError(f"--quantization {name} works on a CPU, not on device {device.type!r}")
    if types.weights == torch.float16:
        raise ConfigError(
            f"--quantization {name} computes in float32 or bfloat16, not in --dtype float16"
        )
    return replace(types, quantization=cast("Quantization", name))
