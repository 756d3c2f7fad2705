"""The decoder gives transformers' logits, however the prompts are cut and mixed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import torch

from atom_lite.attention.protocol import Backend
from atom_lite.attention.select import select_backend
from atom_lite.models.checkpoint import resolve_checkpoint
from atom_lite.models.decoder import Decoder
from atom_lite.models.dtype import ModelTypes
from atom_lite.models.registry import load_model
from atom_lite.models.spec import ModelSpec, load_spec
from atom_lite_kernels.cpu.linear import load_linear
from tests.unit.models.paged_run import PagedRun
from tests.unit.models.tiny_models import CONFIGS, make_model, save

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


CPU = torch.device("cpu")
PROMPT_LENGTHS = (37, 5, 64, 1, 18)


@dataclass(frozen=True)
class Loaded:
    decoder: Decoder
    spec: ModelSpec
    backend: Backend
    prompts: list[list[int]]
    expected: list[torch.Tensor]  # per prompt [length, V], transformers' in float32
    types: ModelTypes

    def run(self) -> PagedRun:
        return PagedRun(self.decoder, self.spec, self.backend, self.prompts, self.types.activations)

    def check(self, run: PagedRun) -> None:
        for sequence, expected in zip(run.sequences, self.expected, strict=True):
            torch.testing.assert_close(sequence.all_logits(), expected, atol=1e-4, rtol=0)


@pytest.fixture(scope="module", params=CONFIGS)
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    model = make_model(CONFIGS[request.param])
    directory = tmp_path_factory.mktemp(request.param)
    save(model, directory)
    return load(model, directory)


def load(model: torch.nn.Module, directory: Path, dtype: torch.dtype = torch.float32) -> Loaded:
    checkpoint = resolve_checkpoint(str(directory))
    spec = load_spec(checkpoint)
    backend = select_backend("auto", CPU)
    types = ModelTypes.of(dtype, CPU)
    decoder = load_model(
        checkpoint, spec, types=types, device=CPU, load_format="auto", backend=backend
    )
    draw = random.Random(3)
    prompts = [[draw.randrange(spec.vocab_size) for _ in range(n)] for n in PROMPT_LENGTHS]
    with torch.no_grad():
        expected = [model(torch.tensor([prompt])).logits[0] for prompt in prompts]
    return Loaded(decoder, spec, backend, prompts, expected, types)


def test_whole_prompts_give_the_oracles_logits(loaded: Loaded) -> None:
    run = loaded.run()
    for index, length in enumerate(PROMPT_LENGTHS):
        run.step([(index, length)])
    loaded.check(run)


@pytest.mark.parametrize("chunk", [3, 4, 16])
def test_chunked_prompts_give_the_oracles_logits(loaded: Loaded, chunk: int) -> None:
    run = loaded.run()
    for index, length in enumerate(PROMPT_LENGTHS):
        for start in range(0, length, chunk):
            run.step([(index, min(chunk, length - start))])
    loaded.check(run)


def test_mixed_batches_give_the_oracles_logits(loaded: Loaded) -> None:
    run = loaded.run()
    run.step([(3, 1), (0, 17), (1, 2)])
    run.step([(0, 1), (1, 1), (2, 30), (4, 11)])
    while unfinished := [
        index for index, s in enumerate(run.sequences) if s.computed < len(s.token_ids)
    ]:
        run.step([(index, 1) for index in unfinished])
    loaded.check(run)


def test_sharded_safetensors_give_the_same_model(tmp_path: Path) -> None:
    model = make_model(CONFIGS["llama"])
    save(model, tmp_path, shard_size="40KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    sharded = load(model, tmp_path)
    run = sharded.run()
    run.step([(index, length) for index, length in enumerate(PROMPT_LENGTHS)])
    sharded.check(run)


def without_our_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atom_lite.layers.linear.load_linear", lambda: None)


def without_packing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where torch lacks the packed operator: other builds, other devices."""
    without_our_kernel(monkeypatch)
    for module in ("linear", "embedding"):
        monkeypatch.setattr(f"atom_lite.layers.{module}.one_dnn_packs", lambda weight: False)


@pytest.mark.parametrize(
    ("prepare", "copies"), [(None, 0), (without_our_kernel, 1), (without_packing, 0)]
)
def test_weight_bytes_count_a_tied_head_where_it_is_a_packed_copy(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    prepare: Callable[[pytest.MonkeyPatch], None] | None,
    copies: int,
) -> None:
    if prepare is not None:
        prepare(monkeypatch)
    elif load_linear() is None:
        pytest.skip("this machine has no C++ compiler")
    model = make_model(CONFIGS["llama-tied-llama3-rope"])
    save(model, tmp_path)
    stored = sum(parameter.numel() for parameter in model.parameters())
    stored += copies * model.lm_head.weight.numel()
    assert load(model, tmp_path).decoder.weight_bytes() == 4 * stored


@pytest.mark.parametrize("prepare", [without_our_kernel, without_packing])
@pytest.mark.parametrize("family", ["qwen2", "llama-tied-llama3-rope"])
def test_without_our_kernel_the_logits_are_the_same(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    family: str,
    prepare: Callable[[pytest.MonkeyPatch], None],
) -> None:
    prepare(monkeypatch)
    model = make_model(CONFIGS[family])
    save(model, tmp_path)
    unpacked = load(model, tmp_path)
    run = unpacked.run()
    run.step([(index, length) for index, length in enumerate(PROMPT_LENGTHS)])
    unpacked.check(run)


@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral-window"])
def test_bfloat16_is_as_near_to_float32_as_transformers_is(tmp_path: Path, family: str) -> None:
    model = make_model(CONFIGS[family])
    save(model, tmp_path)
    half = load(model, tmp_path, torch.bfloat16)
    run = half.run()
    run.step([(3, 1), (0, 17), (1, 5), (2, 64)])
    run.step([(0, 20), (4, 18)])
    model = model.bfloat16()
    with torch.no_grad():
        theirs = [model(torch.tensor([prompt])).logits[0].float() for prompt in half.prompts]
    exact = torch.cat(half.expected)
    our_error = (torch.cat([s.all_logits() for s in run.sequences]) - exact).norm()
    assert our_error < 1.3 * (torch.cat(theirs) - exact).norm()
