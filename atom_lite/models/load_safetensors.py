"""Weights out of safetensors files: one file, or the shards that an index names."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open

from atom_lite.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"

_FLOAT_TYPES = ("F64", "F32", "F16", "BF16")


class SafetensorsWeights:
    """A `WeightSource` over a directory of safetensors files; nothing is read before `read`.

    Args:
        directory: where the files are.
        dtype: type of the matrices that `read` gives.
        device: where they go.

    Raises:
        ConfigError: a file is missing or damaged, or a tensor's type is not a float type.
    """

    def __init__(self, directory: Path, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype = dtype
        self._device = device
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._files: dict[str, Any] = {}  # tensor name -> open file
        for path in weight_files(directory):
            self._open(path)

    def _open(self, path: Path) -> None:
        try:
            file: Any = safe_open(path, framework="pt")
        except (OSError, SafetensorError) as error:
            raise ConfigError(f"cannot read {path}: {error}") from error
        for name in file.keys():  # noqa: SIM118 (an open file is no dict)
            view = file.get_slice(name)
            if view.get_dtype() not in _FLOAT_TYPES:
                raise ConfigError(
                    f"{path}: tensor {name!r} is of type {view.get_dtype()}; "
                    f"supported are {', '.join(_FLOAT_TYPES)}"
                )
            self._shapes[name] = tuple(view.get_shape())
            self._files[name] = file

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name every tensor with its shape."""
        return self._shapes

    def read(self, name: str) -> Tensor:
        """Read one tensor into memory of its own: what is got is a view of the mapped file."""
        tensor: Tensor = self._files[name].get_tensor(name)
        dtype = self._dtype if tensor.dim() > 1 else torch.float32
        return tensor.to(device=self._device, dtype=dtype, copy=True)


def weight_files(directory: Path) -> list[Path]:
    """List the files of a checkpoint: what its index names, else its single file, else all.

    Raises:
        ConfigError: the index is unreadable or names a file that is not there.
    """
    index = directory / INDEX_FILE
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
            files = [directory / name for name in names]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{index} is not a readable weight index: {error!r}") from error
        if missing := [file.name for file in files if not file.is_file()]:
            raise ConfigError(f"{directory}: weight file {missing[0]} of the index is missing")
        return files
    single = directory / SINGLE_FILE
    return [single] if single.is_file() else sorted(directory.glob("*.safetensors"))
