"""Which attention backend a flag and a device give."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atom_lite.attention.cpu import CpuBackend
from atom_lite.attention.reference import ReferenceBackend
from atom_lite.errors import ConfigError
from atom_lite_kernels.cpu.attention import load_attention

if TYPE_CHECKING:
    import torch

    from atom_lite.attention.protocol import Backend


def select_backend(name: str, device: torch.device) -> Backend:
    """Make the backend called `name`; `auto` takes the fastest that runs on `device`.

    Raises:
        ConfigError: the name is unknown, or the backend does not run on the device.
    """
    if name == "auto":
        return CpuBackend(load_attention()) if device.type == "cpu" else ReferenceBackend()
    if name == "reference":
        return ReferenceBackend()
    if name == "cpu":
        if device.type != "cpu":
            raise ConfigError(f"--attention-backend cpu does not run on device {device.type!r}")
        return CpuBackend(load_attention())
    raise ConfigError(f"--attention-backend {name!r} is unknown; use auto, cpu or reference")
