"""Quantized matrices: repacked without loss, rounded by us, and the models that come out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gguf
import numpy as np
import pytest
import torch

from atom_lite.attention.select import select_backend
from atom_lite.errors import ConfigError
from atom_lite.layers.grouped_weight import GroupedWeight, join, quantize
from atom_lite.layers.linear import GatedLinear, Linear, pack_panels
from atom_lite.models import gguf_blocks
from atom_lite.models.checkpoint import Checkpoint
from atom_lite.models.dtype import ModelTypes, Quantization, choose_quantization
from atom_lite.models.gguf_file import BLOCK_FORMATS, GgufFile
from atom_lite.models.load_gguf import GgufWeights
from atom_lite.models.registry import load_model
from atom_lite.models.spec import load_spec
from atom_lite_kernels.cpu.linear import load_linear
from tests.unit.models import gguf_files
from tests.unit.models.paged_run import PagedRun

if TYPE_CHECKING:
    from pathlib import Path

    from atom_lite.models.decoder import Decoder

CPU = torch.device("cpu")
KEPT = {"Q4_0": 4, "Q4_1": 4, "Q8_0": 8, "Q4_K": 4, "Q6_K": 8}
NEEDS_KERNEL = pytest.mark.skipif(load_linear() is None, reason="this machine has no C++ compiler")


def random_blocks(kind: gguf.GGMLQuantizationType, rows: int, columns: int) -> np.ndarray:
    """Any bytes, with scales that are finite numbers."""
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    draw = np.random.default_rng(3)
    blocks = draw.integers(0, 256, (rows * columns // block_size, block_bytes), dtype=np.uint8)
    places = {"Q4_0": [0], "Q4_1": [0, 2], "Q8_0": [0], "Q4_K": [0, 2], "Q6_K": [208]}[kind.name]
    for place in places:
        halves = draw.normal(size=len(blocks)).astype(np.float16)
        blocks[:, place : place + 2] = halves.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(rows, -1)


@NEEDS_KERNEL
@pytest.mark.parametrize("name", KEPT)
def test_kept_blocks_are_the_numbers_that_the_formats_own_package_gives(
    tmp_path: Path, name: str
) -> None:
    kind = gguf.GGMLQuantizationType[name]
    raw = random_blocks(kind, 50, 512)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("t", raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GgufFile(tmp_path / "m.gguf")
    groups = gguf_blocks.read_groups(file, file.tensors["t"])
    assert groups is not None and groups.bits == KEPT[name]
    expected = torch.from_numpy(gguf.quants.dequantize(raw, kind))
    assert torch.equal(groups.expand(torch.float32), expected)
    packed = pack_panels(groups)
    assert packed is not None
    assert torch.equal(packed.rows(torch.arange(50)), expected)


def test_other_formats_are_not_kept(tmp_path: Path) -> None:
    path = gguf_files.write(
        tmp_path / "m.gguf",
        gguf_files.tensors(),
        gguf_files.metadata(),
        quantization=gguf.GGMLQuantizationType.Q5_1,
    )
    file = GgufFile(path)
    assert "Q5_1" in {stored.name for stored in BLOCK_FORMATS.values()}
    assert gguf_blocks.read_groups(file, file.tensors["token_embd.weight"]) is None


@pytest.mark.parametrize(("bits", "limit"), [(8, 0.006), (4, 0.1)])
def test_rounding_moves_weights_by_half_a_step_at_most(bits: int, limit: float) -> None:
    weight = torch.randn(20, 96)
    weight[3] = 0
    weight[4] = 2.5
    rounded = quantize(weight, bits).expand(torch.float32)
    groups = weight.view(20, -1, 32)
    span = groups.abs().amax(-1) * 2 if bits == 8 else groups.amax(-1) - groups.amin(-1)
    step = span / (254 if bits == 8 else 15)
    error = (rounded - weight).view(20, -1, 32).abs().amax(-1)
    # scale and minimum are rounded to float16 themselves
    assert (error <= 0.5 * step + 0.004 * groups.abs().amax(-1)).all()
    assert (rounded - weight).norm() < limit * weight.norm()
    assert torch.equal(rounded[3], weight[3])


@NEEDS_KERNEL
@pytest.mark.parametrize("rows", [1, 4, 30])
def test_parts_of_different_kinds_make_one_product(rows: int) -> None:
    weights = [quantize(torch.randn(24, 64), bits) for bits in (4, 4, 8)]
    parts = join(weights)
    assert [len(part.expand(torch.float32)) for part in parts if not torch.is_tensor(part)] == [
        48,
        24,
    ]
    bias, x = torch.randn(72), torch.randn(rows, 64)
    whole = torch.cat([weight.expand(torch.float32) for weight in weights])
    expected = x @ whole.T + bias
    linear = Linear(parts, bias)
    torch.testing.assert_close(linear.forward(x), expected, atol=1e-4, rtol=1e-4)
    residual = torch.ones(rows, 72)
    linear.add_to(residual, x)
    torch.testing.assert_close(residual, expected + 1, atol=1e-4, rtol=1e-4)
    gate, up = expected.chunk(2, dim=-1)
    gated = GatedLinear(parts, bias).forward(x)
    torch.testing.assert_close(gated, torch.nn.functional.silu(gate) * up, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("name", ["q", "k"])
def test_rows_of_llama_heads_are_put_in_order_in_groups_too(tmp_path: Path, name: str) -> None:
    path = gguf_files.write(
        tmp_path / "m.gguf",
        gguf_files.tensors(),
        gguf_files.metadata(),
        quantization=gguf.GGMLQuantizationType.Q4_1,
    )
    weights = open_weights(path)
    tensor = f"model.layers.1.self_attn.{name}_proj.weight"
    groups = weights.read_groups(tensor)
    assert isinstance(groups, GroupedWeight)
    assert torch.equal(groups.expand(torch.float32), weights.read(tensor))


def open_weights(path: Path) -> GgufWeights:
    return GgufWeights(path, load_spec(checkpoint(path)), torch.float32, CPU)


def checkpoint(path: Path) -> Checkpoint:
    return Checkpoint(path=path, kind="gguf", name="tiny")


def load(path: Path, quantization: Quantization) -> Decoder:
    return load_model(
        checkpoint(path),
        load_spec(checkpoint(path)),
        types=ModelTypes(torch.float32, torch.float32, quantization),
        device=CPU,
        load_format="gguf",
        backend=select_backend("auto", CPU),
    )


def logits(path: Path, quantization: Quantization) -> torch.Tensor:
    spec, backend = load_spec(checkpoint(path)), select_backend("auto", CPU)
    run = PagedRun(load(path, quantization), spec, backend, [list(range(1, 30))])
    run.step([(0, 20)])
    run.step([(0, 9)])
    return run.sequences[0].all_logits()


@pytest.mark.parametrize("has_kernel", [True, False])
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_a_file_kept_quantized_gives_the_logits_of_the_expanded_one(
    tmp_path: Path, kind: str, has_kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = gguf_files.write(
        tmp_path / "m.gguf",
        gguf_files.tensors(),
        gguf_files.metadata(),
        quantization=gguf.GGMLQuantizationType[kind],
    )
    expected = logits(path, "none")
    if not has_kernel:
        monkeypatch.setattr("atom_lite.layers.linear.load_linear", lambda: None)
    torch.testing.assert_close(logits(path, "gguf"), expected, atol=2e-3, rtol=1e-4)


@NEEDS_KERNEL
def test_quantized_weights_take_less_memory(tmp_path: Path) -> None:
    path = gguf_files.write(tmp_path / "m.gguf", gguf_files.tensors(), gguf_files.metadata())
    plain, eight, four = (load(path, kind).weight_bytes() for kind in ("none", "int8", "int4"))
    assert four < 0.75 * eight < 0.75 * 0.4 * plain


def test_quantization_is_chosen_by_flag_and_file() -> None:
    types = ModelTypes.of(torch.bfloat16, CPU)

    def chosen(name: str, dtype: str = "auto", is_gguf: bool = True) -> str:
        return choose_quantization(name, dtype, types, CPU, is_gguf=is_gguf).quantization

    assert chosen("auto") == ("gguf" if load_linear() else "none")
    assert chosen("auto", "float32") == chosen("auto", is_gguf=False) == chosen("none") == "none"
    assert (chosen("int4"), chosen("int8", "float32", is_gguf=False)) == ("int4", "int8")


@pytest.mark.parametrize(
    ("name", "dtype", "device", "message"),
    [
        ("int3", "auto", "cpu", "'int3' is unknown; use auto, none, int8, int4"),
        ("int4", "auto", "meta", "works on a CPU, not on device 'meta'"),
        ("int8", "float16", "cpu", "not in --dtype float16"),
    ],
)
def test_what_cannot_be_quantized_is_refused(
    name: str, dtype: str, device: str, message: str
) -> None:
    weights = torch.float16 if dtype == "float16" else torch.bfloat16
    types = ModelTypes.of(weights, torch.device(device))
    with pytest.raises(ConfigError, match=message):
        choose_quantization(name, dtype, types, torch.device(device), is_gguf=False)
