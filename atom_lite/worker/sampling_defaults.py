"""Where the sampling defaults of requests come from.

`--generation-config` names the source, `--override-generation-config` goes before it. Runs once at
start; the values travel to the frontend, which applies them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from atom_lite.errors import ConfigError
from atom_lite.models.checkpoint import Checkpoint
from atom_lite.models.spec import (
    GENERATION_CONFIG,
    SAMPLING_DEFAULTS,
    checked_defaults,
    load_generation_defaults,
)

if TYPE_CHECKING:
    from atom_lite.config import ModelConfig


def sampling_defaults(config: ModelConfig, checkpoint: Checkpoint) -> dict[str, float]:
    """The defaults of requests that say nothing themselves.

    Args:
        config: `generation_config` is "auto" (the checkpoint's own), "vllm" (none), or a path: a
            directory, or the generation_config.json in it.
        checkpoint: the model.

    Raises:
        ConfigError: there is no such file, it is not readable, or an override is none that we know.
    """
    overrides = config.generation_overrides
    for name in overrides.keys() - SAMPLING_DEFAULTS.keys():
        raise ConfigError(
            f"--override-generation-config: {name!a} is not supported; known: "
            + ", ".join(SAMPLING_DEFAULTS)
        )
    changes = {name: value for name, value in overrides.items() if value is not None}
    return {
        **_from_source(config.generation_config, checkpoint),
        **checked_defaults(changes, "--override-generation-config"),
    }


def _from_source(flag: str, checkpoint: Checkpoint) -> dict[str, float]:
    if flag == "vllm":
        return {}
    if flag == "auto":
        return load_generation_defaults(checkpoint)
    path = Path(flag).expanduser()
    if path.name == GENERATION_CONFIG:
        path = path.parent
    if not (path / GENERATION_CONFIG).is_file():
        raise ConfigError(
            f"--generation-config {flag}: neither auto, vllm, nor a directory with a "
            f"{GENERATION_CONFIG}"
        )
    return load_generation_defaults(Checkpoint(path=path, kind="config", name=path.name))
