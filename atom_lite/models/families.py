"""The list of families, and the look-up by the names that checkpoints use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atom_lite.errors import ConfigError
from atom_lite.models import llama, mistral, qwen2, qwen3

if TYPE_CHECKING:
    from atom_lite.models.family import Family

FAMILIES = (llama.FAMILY, mistral.FAMILY, qwen2.FAMILY, qwen3.FAMILY)


def by_architecture(architectures: list[str], where: str) -> Family:
    """Find the family of a config.json's `architectures`.

    Raises:
        ConfigError: none of them is supported.
    """
    for family in FAMILIES:
        if family.architecture in architectures:
            return family
    known = ", ".join(family.architecture for family in FAMILIES)
    asked = ", ".join(map(str, architectures)) or "(none)"
    raise ConfigError(f"{where}: architecture {asked} is not supported; supported are {known}")


def by_gguf_architecture(name: str, where: str) -> Family:
    """Find the family of a GGUF file's `general.architecture`.

    Raises:
        ConfigError: it is not supported.
    """
    named = {family.gguf_architecture: family for family in FAMILIES if family.gguf_architecture}
    if name not in named:
        raise ConfigError(
            f"{where}: architecture {name!r} is not supported; supported are {', '.join(named)}"
        )
    return named[name]
