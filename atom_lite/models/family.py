"""What one model family adds to the common decoder: a record, filled in by each family's own file.

A new family of the same shape is a new file with a `FAMILY`, listed in `families`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Config = Mapping[str, Any]  # the content of config.json


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """How the decoder of one model differs from plain Llama."""

    attention_bias: bool = False
    attention_output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    layer_windows: tuple[int | None, ...] = ()  # empty: no layer has one


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A model family.

    `config_traits` reads config.json of Hugging Face. GGUF files keep no such flags: their traits
    are `gguf_traits`. `gguf_architecture` is None where another family's files are used.
    """

    architecture: str
    config_traits: Callable[[Config], Traits]
    gguf_architecture: str | None = None
    gguf_traits: Traits = Traits()
    gguf_permuted_heads: bool = False
