"""Safetensors and dummy weights: what fits loads, what does not is named."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import save_file

from atom_lite.attention.select import select_backend
from atom_lite.errors import ConfigError
from atom_lite.layers.rope_parameters import RopeParameters
from atom_lite.models.checkpoint import Checkpoint
from atom_lite.models.dtype import ModelTypes
from atom_lite.models.load_dummy import DummyWeights
from atom_lite.models.load_safetensors import INDEX_FILE, SafetensorsWeights
from atom_lite.models.registry import load_model
from atom_lite.models.spec import ModelSpec
from atom_lite.models.weights import check_tensors, expected_tensors

if TYPE_CHECKING:
    from pathlib import Path

CPU = torch.device("cpu")
SPEC = ModelSpec(
    architecture="Qwen3ForCausalLM",
    vocab_size=30,
    hidden_size=16,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_size=8,
    intermediate_size=24,
    max_position_embeddings=64,
    rms_norm_eps=1e-6,
    rope=RopeParameters(),
    tie_word_embeddings=True,
    layer_windows=(None, None),
    qk_norm=True,
)


def make_tensors(**changes: torch.Tensor) -> dict[str, torch.Tensor]:
    made = {name: torch.randn(shape) for name, shape in expected_tensors(SPEC).items()}
    return made | changes


def load(directory: Path, dtype: torch.dtype = torch.float32) -> Any:
    return load_model(
        Checkpoint(path=directory, kind="safetensors", name="tiny"),
        SPEC,
        types=ModelTypes.of(dtype, CPU),
        device=CPU,
        load_format="auto",
        backend=select_backend("auto", CPU),
    )


def test_harmless_extras_are_left_out(tmp_path: Path) -> None:
    extras = {
        "lm_head.weight": torch.randn(30, 16),  # tied: a copy of the embedding
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.randn(4),
    }
    save_file(make_tensors(**extras), tmp_path / "model.safetensors")
    load(tmp_path)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    tensors = make_tensors()
    del tensors["model.layers.1.self_attn.q_norm.weight"], tensors["model.norm.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=r"'model.norm.weight' is missing \(and 1 more\)"):
        load(tmp_path)


def test_an_extra_tensor_is_named(tmp_path: Path) -> None:
    tensors = make_tensors(**{"model.layers.2.mlp.up_proj.weight": torch.randn(24, 16)})
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=r"'model.layers.2.mlp.up_proj.weight' is not part of a"):
        load(tmp_path)


def test_a_misshapen_tensor_is_named(tmp_path: Path) -> None:
    tensors = make_tensors(**{"model.layers.0.mlp.up_proj.weight": torch.randn(16, 24)})
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=r"up_proj.weight' has shape \[16, 24\].*\[24, 16\]"):
        load(tmp_path)


def test_a_tensor_of_an_integer_type_is_named(tmp_path: Path) -> None:
    tensors = make_tensors(**{"model.norm.weight": torch.ones(16, dtype=torch.int8)})
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=r"'model\.norm\.weight' is of type I8"):
        load(tmp_path)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 100)
    with pytest.raises(ConfigError, match=r"cannot read .*model\.safetensors"):
        load(tmp_path)


def test_a_file_cut_short_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file(make_tensors(), path)
    content = path.read_bytes()
    for length in (0, 5, 100, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(ConfigError, match=r"cannot read .*model\.safetensors"):
            load(tmp_path)


def test_a_loaded_model_does_not_need_its_file_any_more(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file(make_tensors(), path)
    weights = SafetensorsWeights(tmp_path, torch.float32, CPU).read("model.norm.weight")
    before = weights.clone()
    with path.open("r+b") as file:
        file.seek(-path.stat().st_size // 2, 2)
        file.write(b"\xff" * (path.stat().st_size // 2))
    assert torch.equal(weights, before)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    (tmp_path / INDEX_FILE).write_text(json.dumps({"weight_map": {"a": "part-2.safetensors"}}))
    with pytest.raises(ConfigError, match=r"part-2\.safetensors of the index is missing"):
        load(tmp_path)


@pytest.mark.parametrize(
    "text", ["{", "{}", "[]", '{"weight_map": 3}', '{"weight_map": {"a": 5}}', "\xff"]
)
def test_an_unreadable_index_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / INDEX_FILE).write_text(text, encoding="latin-1")
    with pytest.raises(ConfigError, match="not a readable weight index"):
        load(tmp_path)


def test_files_of_other_names_are_found_without_an_index(tmp_path: Path) -> None:
    tensors = make_tensors()
    names = sorted(tensors)
    save_file({name: tensors[name] for name in names[:5]}, tmp_path / "a.safetensors")
    save_file({name: tensors[name] for name in names[5:]}, tmp_path / "b.safetensors")
    check_tensors(SafetensorsWeights(tmp_path, torch.float32, CPU).shapes(), SPEC, "here")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_are_read_in_the_type_asked_for(tmp_path: Path, dtype: torch.dtype) -> None:
    save_file(make_tensors(), tmp_path / "model.safetensors")
    weights = SafetensorsWeights(tmp_path, dtype, CPU)
    assert weights.read("model.embed_tokens.weight").dtype == dtype
    assert weights.read("model.norm.weight").dtype == torch.float32
    matrices = [tensor.numel() for tensor in make_tensors().values() if tensor.dim() == 2]
    norms = [tensor.numel() for tensor in make_tensors().values() if tensor.dim() == 1]
    # the norm of q and k keeps one row per head
    per_head = 2 * (SPEC.num_heads + SPEC.num_kv_heads - 2) * SPEC.head_size
    norm_size = ModelTypes.of(dtype, CPU).activations.itemsize
    expected = 2 * sum(matrices) + norm_size * (sum(norms) + per_head)
    assert load(tmp_path, dtype).weight_bytes() == expected


def test_dummy_weights_depend_on_seed_and_name_only() -> None:
    def read(name: str, seed: int) -> torch.Tensor:
        return DummyWeights(SPEC, torch.float32, CPU, seed).read(name)

    up, gate = "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.gate_proj.weight"
    assert torch.equal(read(up, 0), read(up, 0))
    assert not torch.equal(read(up, 0), read(up, 1))
    assert not torch.equal(read(up, 0), read(gate, 0))
    assert torch.equal(read("model.norm.weight", 0), torch.ones(16))
    check_tensors(DummyWeights(SPEC, torch.float32, CPU, 0).shapes(), SPEC, "dummy")


def test_a_dummy_model_needs_no_files(tmp_path: Path) -> None:
    decoder = load_model(
        Checkpoint(path=tmp_path, kind="config", name="tiny"),
        SPEC,
        types=ModelTypes.of(torch.float32, CPU),
        device=CPU,
        load_format="dummy",
        backend=select_backend("auto", CPU),
        seed=3,
    )
    assert decoder.logits(torch.ones(2, 16)).shape == (2, 30)
