"""Which type `--dtype` gives."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from atom_lite.errors import ConfigError
from atom_lite.models.dtype import choose_dtype
from tests.unit.models.test_weights import SPEC

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
def test_a_named_type_is_taken(name: str) -> None:
    assert choose_dtype(name, CPU, SPEC) == getattr(torch, name)


@pytest.mark.parametrize("has_bf16", [False, True])
@pytest.mark.parametrize("has_amx", [False, True])
def test_auto_on_a_cpu_is_bfloat16_only_where_it_is_native(
    monkeypatch: pytest.MonkeyPatch, has_bf16: bool, has_amx: bool
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: has_bf16)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: has_amx)
    expected = torch.bfloat16 if has_bf16 or has_amx else torch.float32
    assert choose_dtype("auto", CPU, SPEC) == expected


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
    assert choose_dtype("auto", torch.device("meta"), spec) == expected


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(ConfigError, match="'int3' is unknown; use auto, float32"):
        choose_dtype("int3", CPU, SPEC)
