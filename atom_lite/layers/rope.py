"""Rotary position embedding: which angle each dimension turns by, and the turning.

Dimension i turns together with dimension i + D/2 (the "rotate half" order of Hugging Face
checkpoints); GGUF files of the Llama family hold the other order and are un-permuted at load.

Frequencies are computed in float32 step by step as transformers does it: at position 8000 the last
bit of a frequency is already 1e-3 radians, so a "better" float64 would disagree with the weights'
own reference.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from atom_lite_kernels.cpu.elementwise import elementwise_for

if TYPE_CHECKING:
    from atom_lite.layers.rope_parameters import RopeParameters

# Rows of the first cos / sin table; it doubles when a later position is asked for.
FIRST_TABLE_ROWS = 4096


class RotaryEmbedding:
    """Cos and sin tables, and the rotation of q and k in place.

    Args:
        parameters: base and scaling.
        head_size: D.
        max_positions: the model's longest sequence; the tables never grow beyond it.
        dtype: type of q and k; the tables are computed in float32 and rounded to it.
        device: where q and k live.
    """

    def __init__(
        self,
        parameters: RopeParameters,
        head_size: int,
        max_positions: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._frequencies = inverse_frequencies(parameters, head_size).to(device)
        self._amplitude = amplitude(parameters)
        self._max_positions = max_positions
        self._dtype = dtype
        self._cos = self._sin = torch.empty(0)
        self._fill_tables(min(FIRST_TABLE_ROWS, max_positions))

    def select(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cos and signed sin, each [T, 1, D], for the step's positions [T]."""
        needed = int(positions.max()) + 1
        rows = self._cos.shape[0]
        if needed > rows:
            self._fill_tables(max(needed, min(2 * rows, self._max_positions)))
        return self._cos[positions], self._sin[positions]

    def _fill_tables(self, rows: int) -> None:
        position = torch.arange(rows, dtype=torch.float32, device=self._frequencies.device)
        angle = position[:, None] * self._frequencies  # [rows, D/2]
        cos, sin = angle.cos() * self._amplitude, angle.sin() * self._amplitude
        self._cos = torch.cat((cos, cos), dim=-1).to(self._dtype).unsqueeze(1)
        # the sign of the rotation's off-diagonal lives in the table: no negation per step
        self._sin = torch.cat((-sin, sin), dim=-1).to(self._dtype).unsqueeze(1)


def rotate_(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Turn heads x [T, H, D] in place, with the tables' rows from `RotaryEmbedding.select`."""
    kernels = elementwise_for(x)
    if kernels is not None:
        kernels.rotate(x, cos, sin)
        return
    halves_swapped = x.view(*x.shape[:2], 2, -1).flip(-2).view(x.shape)
    x.mul_(cos).addcmul_(halves_swapped, sin)


def inverse_frequencies(parameters: RopeParameters, head_size: int) -> Tensor:
    """Radians per position of each dimension pair, [D/2] float32."""
    exponent = torch.arange(0, head_size, 2, dtype=torch.int64).float() / head_size
    wavelength = parameters.theta**exponent  # in units of 2 pi positions
    frequencies = 1.0 / wavelength
    if parameters.type == "linear":
        frequencies = frequencies / parameters.factor
    elif parameters.type == "llama3":
        frequencies = _llama3(frequencies, parameters)
    elif parameters.type == "yarn":
        frequencies = _yarn(wavelength, parameters, head_size)
    if parameters.frequency_divisors:
        frequencies = frequencies / torch.tensor(parameters.frequency_divisors)
    return frequencies


def amplitude(parameters: RopeParameters) -> float:
    """Factor on cos and sin: 1, except for YaRN's sharper attention."""
    if parameters.type != "yarn":
        return 1.0
    if parameters.attention_factor is not None:
        return parameters.attention_factor
    if parameters.mscale and parameters.mscale_all_dim:
        return _yarn_mscale(parameters.factor, parameters.mscale) / _yarn_mscale(
            parameters.factor, parameters.mscale_all_dim
        )
    return _yarn_mscale(parameters.factor, 1.0)


def _llama3(frequencies: Tensor, parameters: RopeParameters) -> Tensor:
    """Slow long waves down by `factor`, keep short ones, blend in between. Source: Llama 3.1."""
    low, high = parameters.low_frequency_factor, parameters.high_frequency_factor
    original = parameters.original_max_positions
    wavelength = 2 * math.pi / frequencies
    slowed = torch.where(wavelength > original / low, frequencies / parameters.factor, frequencies)
    smooth = (original / wavelength - low) / (high - low)
    blended = (1 - smooth) * slowed / parameters.factor + smooth * slowed
    medium = ~(wavelength < original / high) & ~(wavelength > original / low)
    return torch.where(medium, blended, slowed)


def _yarn(wavelength: Tensor, parameters: RopeParameters, head_size: int) -> Tensor:
    """Interpolate slow dimensions, keep fast ones, blend in between. Source: YaRN, section 3.2."""

    def dimension_of(rotations: float) -> float:
        """Find the dimension that turns this often within the original context."""
        turns = parameters.original_max_positions / (rotations * 2 * math.pi)
        return head_size * math.log(turns) / (2 * math.log(parameters.theta))

    low, high = dimension_of(parameters.beta_fast), dimension_of(parameters.beta_slow)
    if parameters.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_size - 1)
    if low == high:
        high += 0.001  # a ramp of no width would divide by zero
    ramp = ((torch.arange(head_size // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    interpolated = 1.0 / (parameters.factor * wavelength)
    kept = 1 - ramp
    return interpolated * (1 - kept) + 1.0 / wavelength * kept


def _yarn_mscale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0
