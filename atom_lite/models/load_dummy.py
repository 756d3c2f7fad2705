"""Random weights of a spec, for tests, profiling and the load format `scripted`.

Each tensor is a function of (seed, its name) only, so every stage and rank makes the same model
whatever part of it they build, in whatever order.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import torch

from atom_lite.models.weights import expected_tensors

if TYPE_CHECKING:
    from torch import Tensor

    from atom_lite.models.spec import ModelSpec

# Half-width of the uniform distribution: a standard deviation of 0.02, Llama's at initialisation.
_SPREAD = 0.02 * 3**0.5


class DummyWeights:
    """A `WeightSource` that makes what it is asked for; norms are one, all else is uniform."""

    def __init__(
        self, spec: ModelSpec, dtype: torch.dtype, device: torch.device, seed: int
    ) -> None:
        self._shapes = expected_tensors(spec)
        self._dtype = dtype
        self._device = device
        self._seed = seed

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name every tensor that the spec asks for."""
        return self._shapes

    def read(self, name: str) -> Tensor:
        """Make one tensor."""
        shape = self._shapes[name]
        if name.endswith("norm.weight"):
            return torch.ones(shape, device=self._device)
        generator = torch.Generator().manual_seed(zlib.crc32(f"{self._seed} {name}".encode()))
        values = torch.empty(shape).uniform_(-_SPREAD, _SPREAD, generator=generator)
        dtype = self._dtype if len(shape) > 1 else torch.float32
        return values.to(device=self._device, dtype=dtype)
