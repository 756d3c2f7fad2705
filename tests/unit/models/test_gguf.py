"""The GGUF container, its block formats, its names, and the model that comes out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest
import torch

from atom_lite.attention.select import select_backend
from atom_lite.errors import ConfigError
from atom_lite.models import gguf_blocks
from atom_lite.models.checkpoint import Checkpoint
from atom_lite.models.dtype import ModelTypes
from atom_lite.models.gguf_file import BLOCK_FORMATS, GgufFile, GgufTensor
from atom_lite.models.load_gguf import GgufWeights
from atom_lite.models.registry import load_model
from atom_lite.models.spec import load_spec
from atom_lite.models.weights import check_tensors
from tests.unit.models import gguf_files
from tests.unit.models.paged_run import PagedRun

if TYPE_CHECKING:
    from pathlib import Path

CPU = torch.device("cpu")


def gguf_checkpoint(path: Path) -> Checkpoint:
    return Checkpoint(path=path, kind="gguf", name="tiny")


def open_weights(path: Path) -> GgufWeights:
    return GgufWeights(path, load_spec(gguf_checkpoint(path)), torch.float32, CPU)


# ---------------------------------------------------------------- container


def test_metadata_of_every_type_is_read(tmp_path: Path) -> None:
    values = gguf_files.metadata() | {"x.flag": True, "x.text": "hi", "x.nested": [[1, 2], [3]]}
    file = GgufFile(gguf_files.write(tmp_path / "m.gguf", gguf_files.tensors(), values))
    for key, value in values.items():
        assert file.metadata[key] == (pytest.approx(value) if isinstance(value, float) else value)
    assert file.tensors["blk.1.ffn_down.weight"].shape == (gguf_files.HIDDEN, gguf_files.FFN)


def test_a_file_cut_anywhere_is_refused_by_name(tmp_path: Path) -> None:
    whole = gguf_files.write(tmp_path / "m.gguf", gguf_files.tensors(), gguf_files.metadata())
    content = whole.read_bytes()
    cut = tmp_path / "cut.gguf"
    for length in [3, 10, 30, 200, 1000, 3000, len(content) // 2, len(content) - 64]:
        cut.write_bytes(content[:length])
        with pytest.raises(ConfigError, match=r"cut\.gguf"):
            weights = open_weights(cut)
            for name in weights.shapes():
                weights.read(name)


@pytest.mark.parametrize(
    "content",
    [b"", b"PK\x03\x04" + bytes(100), b"GGUF\x09" + bytes(100), b"GGUF\x03\0\0\0" + b"\xff" * 99],
)
def test_what_is_no_gguf_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="not a readable GGUF file"):
        GgufFile(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        GgufFile(tmp_path / "none.gguf")


# ---------------------------------------------------------------- block formats


@pytest.mark.parametrize("type_id", BLOCK_FORMATS)
def test_blocks_expand_as_the_formats_own_package_does(tmp_path: Path, type_id: int) -> None:
    """Any bytes are a valid block, though some hold infinite scales, whose products may be NaN."""
    stored = BLOCK_FORMATS[type_id]
    kind = gguf.GGMLQuantizationType(type_id)
    rows, columns = 70, 512
    draw = np.random.default_rng(1)
    blocks = draw.integers(
        0, 256, (rows * columns // stored.block_size, stored.block_bytes), dtype=np.uint8
    )
    raw = blocks.reshape(rows, -1)
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("t", raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GgufFile(path)
    with np.errstate(all="ignore"):
        expanded = gguf_blocks.read_tensor(file, file.tensors["t"], torch.float32)
        expected = gguf.quants.dequantize(raw, kind).astype(np.float32)
    assert expanded.shape == (rows, columns)
    np.testing.assert_array_equal(expanded.numpy(), expected.reshape(rows, columns))
    assert expanded.isfinite().float().mean() > 0.5


@pytest.mark.parametrize("type_id", BLOCK_FORMATS)
def test_names_and_sizes_of_blocks_are_the_formats_own(type_id: int) -> None:
    stored, kind = BLOCK_FORMATS[type_id], gguf.GGMLQuantizationType(type_id)
    assert stored.name == kind.name
    assert (stored.block_size, stored.block_bytes) == gguf.GGML_QUANT_SIZES[kind]


def test_weights_in_a_rarer_quantization_are_read(tmp_path: Path) -> None:
    path = gguf_files.write(
        tmp_path / "m.gguf",
        gguf_files.tensors(),
        gguf_files.metadata(),
        quantization=gguf.GGMLQuantizationType.Q5_1,
    )
    name = "model.layers.1.mlp.down_proj.weight"
    original = torch.from_numpy(gguf_files.tensors()["blk.1.ffn_down.weight"])
    assert (
        open_weights(path).read(name) - original
    ).abs().max() < 0.15  # normal numbers in steps of about 1/6


def test_large_tensors_expand_piece_by_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = gguf_files.write(
        tmp_path / "m.gguf",
        gguf_files.tensors(),
        gguf_files.metadata(),
        quantization=gguf.GGMLQuantizationType.Q8_0,
    )
    file = GgufFile(path)
    tensor = file.tensors["token_embd.weight"]
    whole = gguf_blocks.read_tensor(file, tensor, torch.bfloat16)
    monkeypatch.setattr(gguf_blocks, "_CHUNK_NUMBERS", 96)
    assert torch.equal(whole, gguf_blocks.read_tensor(file, tensor, torch.bfloat16))


def test_an_unreadable_quantization_is_refused_by_name(tmp_path: Path) -> None:
    path = gguf_files.write(
        tmp_path / "m.gguf",
        gguf_files.tensors(),
        gguf_files.metadata(),
        quantization=gguf.GGMLQuantizationType.MXFP4,
    )
    with pytest.raises(
        ConfigError, match=r"token_embd\.weight.*MXFP4; supported are F32, F16, Q4_0"
    ):
        open_weights(path).shapes()


def test_an_unknown_tensor_type_is_refused_by_number(tmp_path: Path) -> None:
    file = GgufFile(
        gguf_files.write(tmp_path / "m.gguf", gguf_files.tensors(), gguf_files.metadata())
    )
    with pytest.raises(ConfigError, match="type 999"):
        file.format_of(GgufTensor("t", (4, 4), 999, 0))


# ---------------------------------------------------------------- spec and weights


@pytest.mark.parametrize(
    ("architecture", "name"),
    [
        ("llama", "LlamaForCausalLM"),
        ("qwen2", "Qwen2ForCausalLM"),
        ("qwen3", "Qwen3ForCausalLM"),
    ],
)
def test_each_family_loads_and_runs(tmp_path: Path, architecture: str, name: str) -> None:
    path = gguf_files.write(
        tmp_path / "m.gguf",
        gguf_files.tensors(architecture),
        gguf_files.metadata(architecture),
        architecture,
    )
    spec = load_spec(gguf_checkpoint(path))
    assert spec.architecture == name
    assert (spec.vocab_size, spec.num_layers, spec.head_size) == (gguf_files.VOCAB, 2, 16)
    assert (spec.eos_token_ids, spec.bos_token_id) == ((2, 7, 9), 1)
    assert spec.tie_word_embeddings
    assert spec.max_position_embeddings == 128
    backend = select_backend("auto", CPU)
    decoder = load_model(
        gguf_checkpoint(path),
        spec,
        types=ModelTypes.of(torch.float32, CPU),
        device=CPU,
        load_format="gguf",
        backend=backend,
    )
    run = PagedRun(decoder, spec, backend, [[1, 2, 3]])
    run.step([(0, 3)])
    assert run.sequences[0].all_logits().isfinite().all()


def test_llama_heads_are_put_back_in_rotate_half_order(tmp_path: Path) -> None:
    """Permute as llama.cpp's converter does; reading must undo it."""
    tensors = gguf_files.tensors()
    original = {name: tensors[f"blk.0.attn_{name}.weight"] for name in "qkv"}
    for name, heads in (("q", gguf_files.HEADS), ("k", gguf_files.KV_HEADS)):
        matrix = original[name]
        tensors[f"blk.0.attn_{name}.weight"] = (
            matrix.reshape(heads, 2, -1, matrix.shape[1]).swapaxes(1, 2).reshape(matrix.shape)
        )
    weights = open_weights(gguf_files.write(tmp_path / "m.gguf", tensors, gguf_files.metadata()))
    for name, matrix in original.items():
        read = weights.read(f"model.layers.0.self_attn.{name}_proj.weight")
        assert torch.equal(read, torch.from_numpy(matrix))


def _without(name: str) -> dict[str, Any]:
    tensors = gguf_files.tensors()
    del tensors[name]
    return tensors


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (
            _without("blk.1.attn_k.weight"),
            "tensor 'model.layers.1.self_attn.k_proj.weight' is missing",
        ),
        (
            gguf_files.tensors() | {"blk.0.ffn_norm.weight": np.ones(65, np.float32)},
            r"'model.layers.0.post_attention_layernorm.weight' has shape \[65\].*asks for \[64\]",
        ),
        (
            gguf_files.tensors() | {"blk.0.attn_q.bias": np.ones(64, np.float32)},
            "'model.layers.0.self_attn.q_proj.bias' is not part of a LlamaForCausalLM",
        ),
        (
            gguf_files.tensors() | {"blk.0.mystery.weight": np.ones(64, np.float32)},
            "'blk.0.mystery.weight' is not part of",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_named(
    tmp_path: Path, tensors: dict[str, Any], message: str
) -> None:
    path = gguf_files.write(tmp_path / "m.gguf", tensors, gguf_files.metadata())
    spec = load_spec(gguf_checkpoint(path))
    with pytest.raises(ConfigError, match=message):
        check_tensors(open_weights(path).shapes(), spec, "m.gguf")


def test_llama3_scaling_comes_from_its_tensor(tmp_path: Path) -> None:
    divisors = np.array([1, 1, 1, 2, 4, 8, 8, 8], np.float32)
    tensors = gguf_files.tensors() | {"rope_freqs.weight": divisors}
    path = gguf_files.write(tmp_path / "m.gguf", tensors, gguf_files.metadata())
    spec = load_spec(gguf_checkpoint(path))
    assert spec.rope.frequency_divisors == tuple(divisors.tolist())
    check_tensors(open_weights(path).shapes(), spec, "m.gguf")


def test_linear_scaling_and_window_come_from_the_metadata(tmp_path: Path) -> None:
    values = gguf_files.metadata() | {
        "llama.rope.scaling.type": "linear",
        "llama.rope.scaling.factor": 4.0,
        "llama.attention.sliding_window": 32,
    }
    spec = load_spec(
        gguf_checkpoint(gguf_files.write(tmp_path / "m.gguf", gguf_files.tensors(), values))
    )
    assert (spec.rope.type, spec.rope.factor) == ("linear", 4.0)
    assert spec.layer_windows == (32, 32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"llama.rope.scaling.type": "longrope"}, "rope type 'longrope' is not supported"),
        ({"llama.rope.dimension_count": 8}, "part of each head"),
        ({"llama.expert_count": 8}, "mixture-of-experts"),
        ({"llama.block_count": "two"}, "llama.block_count is 'two', not one number"),
        ({"llama.attention.head_count": 0}, "llama.attention.head_count is 0"),
        ({"llama.attention.head_count_kv": [2, 2]}, r"head_count_kv is \[2, 2\], not one number"),
        ({"llama.attention.key_length": "x"}, "key_length is 'x'"),
        ({"llama.rope.freq_base": "x"}, "freq_base is 'x'"),
        ({"tokenizer.ggml.eos_token_id": "x"}, "eos_token_id is 'x', which is no token id"),
        ({"general.alignment": 0}, "general.alignment is 0"),
    ],
)
def test_unsupported_traits_are_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    values = gguf_files.metadata() | change
    path = gguf_files.write(tmp_path / "m.gguf", gguf_files.tensors(), values)
    with pytest.raises(ConfigError, match=message):
        load_spec(gguf_checkpoint(path))


def test_an_unsupported_architecture_is_refused_by_name(tmp_path: Path) -> None:
    path = gguf_files.write(tmp_path / "m.gguf", gguf_files.tensors(), {}, architecture="rwkv7")
    with pytest.raises(ConfigError, match="'rwkv7' is not supported; supported are llama, qwen2"):
        load_spec(gguf_checkpoint(path))
