"""The default model, out of its own file, equals transformers' reading of the same file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from atom_lite.attention.select import select_backend
from atom_lite.models.checkpoint import resolve_checkpoint
from atom_lite.models.dtype import ModelTypes
from atom_lite.models.load_gguf import GgufWeights
from atom_lite.models.registry import load_model
from atom_lite.models.spec import load_spec
from tests.unit.models.paged_run import PagedRun

if TYPE_CHECKING:
    from pathlib import Path

CPU = torch.device("cpu")


def test_every_weight_equals_transformers(smollm2_gguf: Path, smollm2_oracle: Any) -> None:
    spec = load_spec(resolve_checkpoint(str(smollm2_gguf)))
    weights = GgufWeights(smollm2_gguf, spec, torch.float32, CPU)
    expected = smollm2_oracle.state_dict()
    names = weights.shapes()
    assert set(expected) - set(names) <= {"lm_head.weight"}
    for name in names:
        torch.testing.assert_close(weights.read(name), expected[name], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("chunk", [200, 47])
def test_logits_equal_transformers(smollm2_gguf: Path, smollm2_oracle: Any, chunk: int) -> None:
    checkpoint = resolve_checkpoint(str(smollm2_gguf))
    spec = load_spec(checkpoint)
    backend = select_backend("auto", CPU)
    decoder = load_model(
        checkpoint,
        spec,
        types=ModelTypes.of(torch.float32, CPU),
        device=CPU,
        load_format="auto",
        backend=backend,
    )
    prompt = torch.randint(spec.vocab_size, (200,), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = smollm2_oracle(prompt[None]).logits[0]
    run = PagedRun(decoder, spec, backend, [prompt.tolist()])
    for start in range(0, 200, chunk):
        run.step([(0, min(chunk, 200 - start))])
    logits = run.sequences[0].all_logits()
    torch.testing.assert_close(logits, expected, atol=2e-4, rtol=0)
    assert torch.equal(logits.argmax(-1), expected.argmax(-1))
