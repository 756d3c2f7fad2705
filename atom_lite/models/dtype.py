"""Which types a model is stored and computed in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from atom_lite.errors import ConfigError
from atom_lite.layers.linear import has_panels

if TYPE_CHECKING:
    from atom_lite.models.spec import ModelSpec

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class ModelTypes:
    """The types of a model's numbers.

    Attributes:
        weights: of the matrices in memory.
        activations: of everything that flows: the residual stream, the hidden states between
            stages, keys and values as they are made; and of norms and biases.
    """

    weights: torch.dtype
    activations: torch.dtype

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
