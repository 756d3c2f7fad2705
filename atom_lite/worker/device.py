"""Which device the flags mean, and how many threads torch may use on it.

Runs once per stage at start, before anything is allocated.
"""

from __future__ import annotations

import platform
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from atom_lite.errors import ConfigError

if TYPE_CHECKING:
    from atom_lite.config import Config

_CPUINFO = Path("/proc/cpuinfo")


def resolve_device(name: str) -> torch.device:
    """The device called `name`; `auto` takes an accelerator if torch sees one.

    Raises:
        ConfigError: an accelerator is asked for, and torch sees none.
    """
    if name == "cpu":
        return torch.device("cpu")
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    if name == "auto":
        return torch.device("cpu")
    raise ConfigError(f"--device {name}: torch {torch.__version__} sees no such device here")


def take_device(name: str, index: int, num_stages_here: int) -> torch.device:
    """The device of one of several stages on this host: each gets an accelerator of its own.

    It becomes the calling thread's current device, so that the thread's `resolve_device` finds it.

    Args:
        name: `--device`.
        index: which of this host's stages.
        num_stages_here: how many there are.

    Raises:
        ConfigError: more stages than accelerators, or none where one is asked for.
    """
    device = resolve_device(name)
    if device.type == "cpu":
        return device
    check_accelerators(num_stages_here, torch.cuda.device_count())
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def check_accelerators(num_stages_here: int, num_accelerators: int) -> None:
    """Raise ConfigError when stages would have to share an accelerator."""
    if num_stages_here > num_accelerators:
        raise ConfigError(
            f"{num_stages_here} pipeline stages on this host need as many accelerators, and "
            f"{num_accelerators} can be seen"
        )


def device_name(device: torch.device, cpuinfo: Path = _CPUINFO) -> str:
    """What the hardware calls itself: step times belong to it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        text = cpuinfo.read_text(encoding="utf-8")
    except OSError:  # not Linux
        return platform.processor() or platform.machine()
    fields = [[part.strip() for part in line.split(":", 1)] for line in text.splitlines()]
    # Virtual machines hide a processor's name, but not its family and model.
    wanted = ("model name", "cpu family", "model", "CPU implementer", "CPU part")
    known = {field[0]: field[1] for field in fields if field[0] in wanted and len(field) == 2}
    return " ".join([platform.machine(), *(known[key] for key in wanted if key in known)])


def count_accelerators(config: Config) -> int:
    """How many accelerators the flags leave to the engine; 0 on a CPU."""
    return torch.cuda.device_count() if resolve_device(config.model.device).type == "cuda" else 0


def set_threads(threads: int | None) -> None:
    """Give torch's operations `threads` CPU threads; None leaves torch's own choice.

    Raises:
        ConfigError: fewer than one.
    """
    if threads is None:
        return
    if threads < 1:
        raise ConfigError(f"--threads {threads}: must be at least 1")
    torch.set_num_threads(threads)
