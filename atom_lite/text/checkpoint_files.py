"""Find and read the tokenizer files of a checkpoint.

A model directory may hold tokenizer.json, tokenizer_config.json, special_tokens_map.json and chat
templates in four places; a GGUF file holds the same as metadata. Both come out as `TokenizerFiles`.
A directory with only a SentencePiece model or a vocab.json is converted once, in another process
(`convert_tokenizer.py`), because the conversion needs transformers. Runs in the frontend at start.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from atom_lite.errors import ConfigError
from atom_lite.models.gguf_file import GgufFile, GgufValue
from atom_lite.text import gguf_tokenizer
from atom_lite.text.convert_tokenizer import converted_directory
from atom_lite.text.special_tokens import apply_config, named_special_tokens

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFiles:
    """All that a checkpoint says about its tokenizer.

    Attributes:
        backend: encodes and decodes.
        special_tokens: the named ones, such as bos_token, that the checkpoint sets.
        chat_templates: Jinja sources by name; the usual one is "default".
        config: the content of tokenizer_config.json, or what the GGUF file says in its place.
    """

    backend: Tokenizer
    special_tokens: dict[str, str] = field(default_factory=dict)
    chat_templates: dict[str, str] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)


def read_tokenizer(path: Path, *, override: Path | None = None) -> TokenizerFiles:
    """The tokenizer at `override` if given, else at `path`.

    Raises:
        ConfigError: when there is none, or it cannot be read.
    """
    if override is None:
        return _read(path)
    files = _read(override)
    if not files.chat_templates:
        return replace(files, chat_templates=_chat_templates_at(path))
    return files


def _read(path: Path) -> TokenizerFiles:
    if not path.exists():
        raise ConfigError(f"no tokenizer at {path}: there is no such file or directory")
    try:
        if path.is_dir():
            return _read_directory(path)
        return _read_files(path) if path.suffix == ".json" else _read_gguf(path)
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        # Readable files whose content has another shape than it should.
        raise ConfigError(f"the tokenizer files at {path} are malformed: {error!r}") from error


def _chat_templates_at(path: Path) -> dict[str, str]:
    if path.is_dir():
        return _directory_templates(path, _read_json(path / "tokenizer_config.json"))
    return _gguf_templates(GgufFile(path).metadata) if path.is_file() else {}


# ---------------------------------------------------------------- directories


def _read_directory(directory: Path) -> TokenizerFiles:
    if (directory / "tokenizer.json").is_file():
        return _read_files(directory / "tokenizer.json")
    if gguf_files := sorted(directory.glob("*.gguf")):
        return _read_gguf(gguf_files[0])  # of a split model, the first part holds the metadata
    return _read_files(converted_directory(directory) / "tokenizer.json")


def _read_files(tokenizer_json: Path) -> TokenizerFiles:
    directory = tokenizer_json.parent
    try:
        backend = Tokenizer.from_file(str(tokenizer_json))
    except Exception as error:  # the binding raises plain Exception
        raise ConfigError(f"cannot read the tokenizer {tokenizer_json}: {error}") from error
    backend.no_truncation()  # a training run's settings; a server neither cuts nor pads
    backend.no_padding()
    config = _read_json(directory / "tokenizer_config.json")
    declared = {**_read_json(directory / "special_tokens_map.json"), **config}
    special_tokens = named_special_tokens(declared)
    apply_config(backend, config, special_tokens)
    return TokenizerFiles(
        backend=backend,
        special_tokens=special_tokens,
        chat_templates=_directory_templates(directory, config),
        config=config,
    )


def _read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty when the file is not there."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} must hold a JSON object, not {type(content).__name__}")
    return content


def _directory_templates(directory: Path, config: dict[str, Any]) -> dict[str, str]:
    """Chat templates by name; a file of its own goes before tokenizer_config.json."""
    templates: dict[str, str] = {}
    for source in (
        config.get("chat_template"),
        _read_json(directory / "chat_template.json").get("chat_template"),
    ):
        if isinstance(source, str):
            templates["default"] = source
        elif isinstance(source, list):
            templates.update({entry["name"]: entry["template"] for entry in source})
    for path in sorted((directory / "additional_chat_templates").glob("*.jinja")):
        templates[path.stem] = path.read_text(encoding="utf-8")
    if (path := directory / "chat_template.jinja").is_file():
        templates["default"] = path.read_text(encoding="utf-8")
    return templates


# ---------------------------------------------------------------- GGUF


def _read_gguf(path: Path) -> TokenizerFiles:
    metadata = GgufFile(path).metadata
    special_tokens = gguf_tokenizer.special_tokens(metadata)
    templates = _gguf_templates(metadata)
    flags = {
        name: metadata[f"tokenizer.ggml.{name}"]
        for name in ("add_bos_token", "add_eos_token")
        if f"tokenizer.ggml.{name}" in metadata
    }
    return TokenizerFiles(
        backend=gguf_tokenizer.build_tokenizer(metadata),
        special_tokens=special_tokens,
        chat_templates=templates,
        config=dict(flags),
    )


def _gguf_templates(metadata: dict[str, GgufValue]) -> dict[str, str]:
    prefix = "tokenizer.chat_template"
    templates = {}
    for key, source in metadata.items():
        if isinstance(source, str) and (key == prefix or key.startswith(prefix + ".")):
            templates[key[len(prefix) + 1 :] or "default"] = source
    return templates
