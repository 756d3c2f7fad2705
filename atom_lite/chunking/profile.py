"""Saved calibration: `--dynamic-chunking-profile FILE`.

A restarted server plans from its first prompt on, without a startup sweep. The file is JSON with a
version and a fingerprint; a profile of another machine, model or layer split is not an error, it is
simply not used. The only module of this package that touches the disk. Runs in the head process,
at start and when a model has been installed.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from atom_lite.chunking.fit_robust import FitQuality
from atom_lite.chunking.latency_model import LatencyModel
from atom_lite.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """What step times depend on.

    Attributes:
        model: name and weights' format.
        dtype: of weights and activations.
        device: its name, see `worker.device.device_name`.
        num_threads: of a stage on a CPU, or else its CPUs; 0 on an accelerator.
        layers_per_stage: the pipeline's split.
        tensor_parallel_size: ranks that share each layer.
    """

    model: str
    dtype: str
    device: str
    num_threads: int
    layers_per_stage: tuple[int, ...]
    tensor_parallel_size: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One model per stage and how good each fit was."""

    fingerprint: Fingerprint
    models: tuple[LatencyModel, ...]
    qualities: tuple[FitQuality | None, ...]


def save_profile(path: Path, profile: Profile) -> None:
    """Write the file in one go: readers see the old one or the new one.

    Raises:
        ConfigError: the path cannot be written; names it and says why.
    """
    document = {
        "version": VERSION,
        "fingerprint": asdict(profile.fingerprint),
        "stages": [
            {"model": asdict(model), "quality": asdict(quality) if quality else None}
            for model, quality in zip(profile.models, profile.qualities, strict=True)
        ],
    }
    unfinished = path.with_name(path.name + ".tmp")
    try:
        unfinished.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        unfinished.replace(path)
    except OSError as error:
        raise ConfigError(
            f"--dynamic-chunking-profile {path} cannot be written: {error.strerror}"
        ) from error


def load_profile(path: Path) -> Profile | None:
    """Read a profile; None where there is no such file yet.

    Raises:
        ConfigError: the file is there but is not a profile of this version.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--dynamic-chunking-profile {path} cannot be read: {error}") from error
    try:
        return _parse(json.loads(text))
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            f"--dynamic-chunking-profile {path} is not a profile of version {VERSION}: {error}; "
            "delete it to calibrate anew"
        ) from error


def mismatch(saved: Fingerprint, current: Fingerprint) -> str | None:
    """Why a saved profile does not count here, or None."""
    differences = [
        f"{field.name} {getattr(saved, field.name)!r} is now {getattr(current, field.name)!r}"
        for field in fields(Fingerprint)
        if getattr(saved, field.name) != getattr(current, field.name)
    ]
    return "; ".join(differences) or None


def _parse(document: Any) -> Profile:
    if not isinstance(document, dict) or document.get("version") != VERSION:
        raise ValueError("wrong version")
    raw = dict(document["fingerprint"])
    raw["layers_per_stage"] = tuple(int(layers) for layers in raw["layers_per_stage"])
    fingerprint = Fingerprint(**raw)
    stages = document["stages"]
    if len(stages) != len(fingerprint.layers_per_stage):
        raise ValueError(f"{len(stages)} models for {len(fingerprint.layers_per_stage)} stages")
    return Profile(
        fingerprint=fingerprint,
        models=tuple(LatencyModel(**stage["model"]) for stage in stages),
        qualities=tuple(
            FitQuality(**stage["quality"]) if stage["quality"] else None for stage in stages
        ),
    )
