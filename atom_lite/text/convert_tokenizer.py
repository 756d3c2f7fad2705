"""Convert a checkpoint's slow tokenizer to a tokenizer.json, once, in a process of its own.

Old checkpoints ship tokenizer.model or vocab.json with merges.txt only. transformers can convert
them; the frontend must not import it (2 s and 200 MB for a thing needed once). So the frontend runs
a few lines of Python in a process of their own, and keeps the outcome in a cache directory named by
the content of the files that went in.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from atom_lite.errors import ConfigError

_SOURCES = (
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "config.json",
)
_TIMEOUT_SECONDS = 300
_SCRIPT = """
import sys
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1], local_files_only=True)
tokenizer.save_pretrained(sys.argv[2])
"""


def converted_directory(directory: Path) -> Path:
    """A directory with the tokenizer.json made from the slow tokenizer in `directory`.

    Raises:
        ConfigError: when there is no tokenizer to convert, or the conversion fails.
    """
    sources = [directory / name for name in _SOURCES if (directory / name).is_file()]
    if all(source.name.endswith("config.json") for source in sources):
        raise ConfigError(
            f"{directory} has no tokenizer (tokenizer.json, tokenizer.model or vocab.json); "
            "give one with --tokenizer"
        )
    target = _cache_root() / _fingerprint(sources)
    if not (target / "tokenizer.json").is_file():
        _convert_into(target, sources)
    return target


def _cache_root() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "atom_lite" / "tokenizers"


def _fingerprint(sources: list[Path]) -> str:
    digest = hashlib.sha256()
    for source in sources:
        content = source.read_bytes()
        digest.update(f"{source.name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()[:32]


def _convert_into(target: Path, sources: list[Path]) -> None:
    """Convert beside the target, then move it there: no half a directory is ever seen."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="converting-") as scratch:
        inputs, outputs = Path(scratch, "in"), Path(scratch, "out")
        inputs.mkdir()
        for source in sources:
            shutil.copyfile(source, inputs / source.name)
        _run_conversion(inputs, outputs, origin=sources[0].parent)
        try:
            outputs.rename(target)
        except OSError as error:
            if not (target / "tokenizer.json").is_file():  # else another process was first
                raise ConfigError(f"cannot keep the converted tokenizer: {error}") from error


def _run_conversion(inputs: Path, outputs: Path, *, origin: Path) -> None:
    command = [sys.executable, "-P", "-c", _SCRIPT, str(inputs), str(outputs)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ConfigError(
            f"the tokenizer of {origin} was not converted within {_TIMEOUT_SECONDS} s"
        ) from error
    if done.returncode != 0 or not (outputs / "tokenizer.json").is_file():
        reason = done.stderr.strip().splitlines()[-1:] or ["no tokenizer.json was written"]
        raise ConfigError(f"the tokenizer of {origin} cannot be converted: {reason[0]}")
