"""Where the sampling defaults of requests come from: `--generation-config`.

Runs once at start; the values travel to the frontend, which applies them.
"""

from __future__ import annotations

from pathlib import Path

from atom_lite.errors import ConfigError
from atom_lite.models.checkpoint import Checkpoint
from atom_lite.models.spec import GENERATION_CONFIG, load_generation_defaults


def sampling_defaults(flag: str, checkpoint: Checkpoint) -> dict[str, float]:
    """The defaults that `flag` names: the checkpoint's own, none, or those of another directory.

    Args:
        flag: "auto", "vllm", or a path: a directory, or the generation_config.json in it.
        checkpoint: the model.

    Raises:
        ConfigError: there is no such file, or it is not readable.
    """
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
