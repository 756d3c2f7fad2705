"""Load a model: open the right kind of weights, check them, build the decoder layer by layer.

Each layer's matrices are read, joined and packed before the next layer's are touched, so that the
peak is one copy of the model and one layer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from atom_lite.layers.embedding import Embedding
from atom_lite.layers.grouped_weight import join
from atom_lite.layers.linear import GatedLinear, Linear
from atom_lite.layers.mlp import GatedMlp
from atom_lite.layers.norm import RmsNorm
from atom_lite.layers.one_call import one_call
from atom_lite.layers.rope import RotaryEmbedding
from atom_lite.models.decoder import Attention, Decoder, DecoderLayer, HeadNorm
from atom_lite.models.load_dummy import DummyWeights
from atom_lite.models.load_gguf import GgufWeights
from atom_lite.models.load_safetensors import SafetensorsWeights
from atom_lite.models.matrix_reader import MatrixReader
from atom_lite.models.partition import whole_model
from atom_lite.models.weights import EMBEDDING, FINAL_NORM, HEAD, check_tensors

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from atom_lite.attention.protocol import Backend
    from atom_lite.layers.grouped_weight import Weight
    from atom_lite.layers.one_call import OneCall
    from atom_lite.models.checkpoint import Checkpoint
    from atom_lite.models.decoder import Head
    from atom_lite.models.dtype import ModelTypes
    from atom_lite.models.partition import StageLayers
    from atom_lite.models.spec import ModelSpec
    from atom_lite.models.weights import WeightSource


@torch.inference_mode()
def load_model(
    checkpoint: Checkpoint,
    spec: ModelSpec,
    *,
    types: ModelTypes,
    device: torch.device,
    load_format: str,
    backend: Backend,
    seed: int = 0,
    stage: StageLayers | None = None,
) -> Decoder:
    """Load the weights of `checkpoint`, or of one stage of it, into a decoder.

    Args:
        checkpoint: where the weights are.
        spec: what `load_spec` read from it.
        types: of weights and activations, and how matrices are held.
        device: where the model runs.
        load_format: `--load-format`; dummy and scripted make random weights of the spec.
        backend: what attends over the KV cache.
        seed: of random weights.
        stage: which layers; None for all.

    Raises:
        ConfigError: a tensor is missing, extra, misshapen or stored in an unsupported way.
    """
    source: WeightSource
    if load_format in ("dummy", "scripted"):
        source = DummyWeights(spec, types.weights, device, seed)
    elif checkpoint.kind == "gguf":
        source = GgufWeights(checkpoint.path, spec, types.weights, device)
    else:
        source = SafetensorsWeights(checkpoint.path, types.weights, device)
    check_tensors(source.shapes(), spec, str(checkpoint.path))
    if isinstance(source, GgufWeights) and types.quantization != "gguf":
        source = source.cached(checkpoint.weights_cache_bytes)
    matrices = MatrixReader(source, types)
    stage = stage or whole_model(spec)
    embedding = Embedding(matrices.read_table(EMBEDDING)) if stage.is_first else None
    norm = matrices.read_vector(FINAL_NORM) if stage.is_last else None
    layers = [
        _build_layer(matrices, spec, layer, backend) for layer in range(stage.first, stage.end)
    ]
    return Decoder(
        embedding=embedding,
        rope=RotaryEmbedding(
            spec.rope, spec.head_size, spec.max_position_embeddings, types.activations, device
        ),
        layers=layers,
        norm=None if norm is None else RmsNorm(norm, spec.rms_norm_eps),
        head=_build_head(matrices, spec, embedding) if stage.is_last else None,
        backend=backend,
        one_call=_build_one_call(layers, spec, backend),
    )


def _build_one_call(
    layers: list[DecoderLayer], spec: ModelSpec, backend: Backend
) -> OneCall | None:
    weights = [layer.weights() for layer in layers]
    return one_call(weights, backend, num_heads=spec.num_heads, scale=spec.head_size**-0.5)


def _build_head(matrices: MatrixReader, spec: ModelSpec, embedding: Embedding | None) -> Head:
    if not spec.tie_word_embeddings:
        return Linear(matrices.read_table(HEAD))
    if embedding is None:  # it is in the first stage: the last one has a copy as its head
        return Linear(matrices.read_table(EMBEDDING))
    return embedding.head()


def _build_layer(
    matrices: MatrixReader, spec: ModelSpec, layer: int, backend: Backend
) -> DecoderLayer:
    prefix = f"model.layers.{layer}."

    def read(name: str) -> Tensor:
        return matrices.read_vector(prefix + name)

    def joined(names: tuple[str, ...], has_bias: bool) -> tuple[list[Weight], Tensor | None]:
        weights = join([matrices.read(f"{prefix}{name}.weight") for name in names])
        biases = [read(f"{name}.bias") for name in names] if has_bias else []
        return weights, torch.cat(biases) if biases else None

    def norm(name: str) -> RmsNorm:
        return RmsNorm(read(f"{name}.weight"), spec.rms_norm_eps)

    q, k, v = (f"self_attn.{name}_proj" for name in "qkv")
    attention = Attention(
        qkv=Linear(*joined((q, k, v), spec.attention_bias)),
        output=Linear(*joined(("self_attn.o_proj",), spec.attention_output_bias)),
        qk_norm=_head_norm(read, spec) if spec.qk_norm else None,
        backend=backend,
        spec=spec,
        window=spec.layer_windows[layer],
    )
    mlp = GatedMlp(
        gate_up=GatedLinear(*joined(("mlp.gate_proj", "mlp.up_proj"), spec.mlp_bias)),
        down=Linear(*joined(("mlp.down_proj",), spec.mlp_bias)),
    )
    return DecoderLayer(norm("input_layernorm"), attention, norm("post_attention_layernorm"), mlp)


def _head_norm(read: Callable[[str], Tensor], spec: ModelSpec) -> HeadNorm:
    weights = (
        read("self_attn.q_norm.weight").expand(spec.num_heads, -1),
        read("self_attn.k_norm.weight").expand(spec.num_kv_heads, -1),
    )
    return HeadNorm(torch.cat(weights), spec.rms_norm_eps)
