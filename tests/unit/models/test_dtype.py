"""Which types `--dtype` gives."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from atom_lite.errors import ConfigError
from atom_lite.models.dtype import ModelTypes, choose_types
from atom_lite_kernels.cpu.linear import load_linear
from tests.unit.models.test_weights import SPEC

CPU = torch.device("cpu")
ACCELERATOR = torch.device("meta")


def without_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atom_lite.layers.linear.load_linear", lambda: None)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
def test_a_named_type_is_taken_for_the_weights(name: str) -> None:
    assert choose_types(name, CPU, SPEC).weights == getattr(torch, name)
    both = getattr(torch, name)
    assert choose_types(name, ACCELERATOR, SPEC) == ModelTypes(both, both)


@pytest.mark.skipif(load_linear() is None, reason="this machine has no C++ compiler")
@pytest.mark.parametrize(
    ("name", "weights", "activations"),
    [
        ("auto", torch.bfloat16, torch.float32),
        ("bfloat16", torch.bfloat16, torch.float32),
        ("float32", torch.float32, torch.float32),
        ("float16", torch.float16, torch.float16),
    ],
)
def test_our_kernels_compute_in_float32(
    name: str, weights: torch.dtype, activations: torch.dtype
) -> None:
    assert choose_types(name, CPU, SPEC) == ModelTypes(weights, activations)


@pytest.mark.parametrize("has_bf16", [False, True])
@pytest.mark.parametrize("has_amx", [False, True])
def test_auto_without_our_kernels_is_bfloat16_only_where_the_cpu_has_it(
    monkeypatch: pytest.MonkeyPatch, has_bf16: bool, has_amx: bool
) -> None:
    without_kernel(monkeypatch)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: has_bf16)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: has_amx)
    expected = torch.bfloat16 if has_bf16 or has_amx else torch.float32
    assert choose_types("auto", CPU, SPEC) == ModelTypes(expected, expected)


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        ("float16", torch.float16),
        ("bfloat16", torch.bfloat16),
        ("float32", torch.bfloat16),
        (None, torch.bfloat16),
    ],
)
def test_auto_on_an_accelerator_is_a_half_type(stored: str | None, expected: torch.dtype) -> None:
    spec = dataclasses.replace(SPEC, dtype=stored)
    assert choose_types("auto", ACCELERATOR, spec) == ModelTypes(expected, expected)


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(ConfigError, match="'int3' is unknown; use auto, float32"):
        choose_types("int3", CPU, SPEC)
