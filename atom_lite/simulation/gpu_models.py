"""GPU-like latency models of known machines, from a roofline: no more than their kind.

    c       weights read once, and 2 ms of launches        gamma  0 (GQA)
    b       2 flops a parameter for a new token            a      attention's flops
    d0      b: a decode row is a new token                 d1     its KV read once

A step's time is the sum of these, where on a GPU memory and compute overlap, so small steps come
out slower than they are. Good for ratios between policies on one machine, not for milliseconds.
Runs in simulations only. Sizes: the models' cards and NVIDIA's A100 data sheet.
"""

from __future__ import annotations

from dataclasses import dataclass

from atom_lite.chunking.latency_model import LatencyModel
from atom_lite.simulation.batching import Server
from atom_lite.simulation.stages import PipelineSpec

_A100_FLOPS = 312e12
_A100_BYTES_PER_SECOND = 2.0e12
_A100_BYTES = 80e9
_COMPUTE_SHARE = 0.6  # of the peak, as well-tuned kernels reach
_MEMORY_SHARE = 0.8
_STEP_SECONDS = 0.002
_BYTES = 2  # of a weight or a KV entry


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMachine:
    """A model on some A100s.

    Attributes:
        name: of the model.
        parameters: how many it has.
        num_layers: of it.
        hidden: its width, which attention's flops go by.
        kv_width: of keys (or values) of one token and layer.
        num_gpus: of each stage (tensor parallel).
        num_stages: of the pipeline.
    """

    name: str
    parameters: float
    num_layers: int
    hidden: int
    kv_width: int
    num_gpus: int = 1
    num_stages: int = 1

    @property
    def kv_bytes_per_token(self) -> float:
        """Of the whole model."""
        return 2.0 * self.num_layers * self.kv_width * _BYTES

    def stage_model(self) -> LatencyModel:
        """Of one stage."""
        flops = _A100_FLOPS * _COMPUTE_SHARE * self.num_gpus
        bandwidth = _A100_BYTES_PER_SECOND * _MEMORY_SHARE * self.num_gpus
        share = 1.0 / self.num_stages
        linear = 2.0 * self.parameters * share / flops
        # QK and PV take 4 flops for each pair and unit of width; the area counts a pair twice.
        attention = 2.0 * self.hidden * self.num_layers * share / flops
        model = LatencyModel(
            constant_seconds=self.parameters * _BYTES * share / bandwidth + _STEP_SECONDS,
            prefix_seconds_per_token=0.0,
            linear_seconds_per_token=linear,
            attention_seconds_per_area=attention,
        )
        return model.with_decodes(linear, self.kv_bytes_per_token * share / bandwidth)

    def server(self) -> Server:
        """With what its weights leave of the memory, nine tenths of it, for the KV cache."""
        memory = _A100_BYTES * self.num_gpus * self.num_stages
        free = 0.9 * memory - self.parameters * _BYTES
        return Server(
            pipeline=PipelineSpec(models=(self.stage_model(),) * self.num_stages),
            kv_tokens=int(free / self.kv_bytes_per_token),
        )


MISTRAL_7B = GpuMachine(
    name="Mistral-7B, 1 A100", parameters=7.2e9, num_layers=32, hidden=4096, kv_width=1024
)
YI_34B = GpuMachine(
    name="Yi-34B, TP2",
    parameters=34.4e9,
    num_layers=60,
    hidden=7168,
    kv_width=1024,
    num_gpus=2,
)
FALCON_180B = GpuMachine(
    name="Falcon-180B, TP4 PP2",
    parameters=180e9,
    num_layers=80,
    hidden=14848,
    kv_width=512,
    num_gpus=4,
    num_stages=2,
)
MACHINES = (MISTRAL_7B, YI_34B, FALCON_180B)
