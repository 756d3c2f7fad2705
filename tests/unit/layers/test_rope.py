"""Frequencies equal transformers'; the rotation equals its reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from atom_lite.layers.rope import RotaryEmbedding, amplitude, inverse_frequencies, rotate_
from atom_lite.layers.rope_parameters import RopeParameters
from atom_lite_kernels import reference

CPU = torch.device("cpu")
SCALINGS: list[tuple[dict[str, Any], RopeParameters]] = [
    (
        {"rope_type": "linear", "factor": 4.0},
        RopeParameters(theta=1e4, type="linear", factor=4.0),
    ),
    (
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        RopeParameters(
            theta=1e4,
            type="llama3",
            factor=8.0,
            low_frequency_factor=1.0,
            high_frequency_factor=4.0,
            original_max_positions=8192,
        ),
    ),
    (
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096},
        RopeParameters(theta=1e4, type="yarn", factor=4.0, original_max_positions=4096),
    ),
    (
        {
            "rope_type": "yarn",
            "factor": 40.0,
            "original_max_position_embeddings": 4096,
            "mscale": 1.0,
            "mscale_all_dim": 0.7,
            "beta_fast": 16.0,
            "beta_slow": 2.0,
            "truncate": False,
        },
        RopeParameters(
            theta=1e4,
            type="yarn",
            factor=40.0,
            original_max_positions=4096,
            mscale=1.0,
            mscale_all_dim=0.7,
            beta_fast=16.0,
            beta_slow=2.0,
            truncate=False,
        ),
    ),
]


@pytest.mark.parametrize(("scaling", "parameters"), SCALINGS)
def test_scaled_frequencies_equal_transformers(
    scaling: dict[str, Any], parameters: RopeParameters
) -> None:
    config = LlamaConfig(
        hidden_size=128,
        num_attention_heads=2,
        max_position_embeddings=32768,
        rope_parameters=scaling | {"rope_theta": 1e4},
    )
    expected, factor = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config, CPU)
    assert torch.equal(inverse_frequencies(parameters, 64), expected)
    assert amplitude(parameters) == pytest.approx(factor)


def test_gguf_divisors_slow_each_dimension() -> None:
    plain = inverse_frequencies(RopeParameters(theta=100.0), 4)
    divided = inverse_frequencies(RopeParameters(theta=100.0, frequency_divisors=(1.0, 8.0)), 4)
    torch.testing.assert_close(divided, plain / torch.tensor([1.0, 8.0]))


def test_rotation_equals_the_reference_beyond_the_first_table() -> None:
    parameters = RopeParameters(theta=1e4)
    rope = RotaryEmbedding(parameters, 16, 20_000, torch.float32, CPU)
    positions = torch.tensor([0, 1, 19_999, 4095, 4096])
    heads = torch.randn(5, 4, 16)
    expected = reference.rotate(heads, positions, inverse_frequencies(parameters, 16))
    rotated = torch.empty(5, 6, 16)  # a part of a wider row, as q and k are of qkv
    rotated[:, :4] = heads
    rotate_(rotated[:, :4], *rope.select(positions))
    torch.testing.assert_close(rotated[:, :4], expected, atol=2e-3, rtol=0)
