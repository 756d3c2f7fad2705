"""Which type a model is computed in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from atom_lite.errors import ConfigError

if TYPE_CHECKING:
    from atom_lite.models.spec import ModelSpec

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def choose_dtype(name: str, device: torch.device, spec: ModelSpec) -> torch.dtype:
    """Turn `--dtype` into a type.

    `auto` is, on a CPU, bfloat16 where it multiplies in bfloat16 (elsewhere that type is emulated,
    six times slower than float32); on an accelerator, the checkpoint's own half type.

    Raises:
        ConfigError: the name is unknown.
    """
    if name != "auto":
        if name not in _DTYPES:
            raise ConfigError(f"--dtype {name!r} is unknown; use auto, {', '.join(_DTYPES)}")
        return _DTYPES[name]
    if device.type == "cpu":
        native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
        return torch.bfloat16 if native else torch.float32
    stored = _DTYPES.get(spec.dtype or "", torch.bfloat16)
    if stored == torch.float16 or (device.type == "cuda" and not torch.cuda.is_bf16_supported()):
        return torch.float16
    return torch.bfloat16
