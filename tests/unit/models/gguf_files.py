"""Small GGUF files for tests, written by the format's own package."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gguf
import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

HIDDEN, HEADS, KV_HEADS, FFN, VOCAB = 64, 4, 2, 96, 40

# A layer's matrices as [out, in]; biases and norms are made beside them.
MATRICES = {
    "attn_q": (HIDDEN, HIDDEN),
    "attn_k": (HIDDEN // 2, HIDDEN),
    "attn_v": (HIDDEN // 2, HIDDEN),
    "attn_output": (HIDDEN, HIDDEN),
    "ffn_gate": (FFN, HIDDEN),
    "ffn_up": (FFN, HIDDEN),
    "ffn_down": (HIDDEN, FFN),
}


def tensors(architecture: str = "llama", num_layers: int = 2) -> dict[str, np.ndarray[Any, Any]]:
    """Random tensors of a tiny model, under GGUF's names."""
    draw = np.random.default_rng(5)
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (VOCAB, HIDDEN),
        "output_norm.weight": (HIDDEN,),
    }
    for layer in range(num_layers):
        prefix = f"blk.{layer}."
        shapes |= {f"{prefix}{name}.weight": shape for name, shape in MATRICES.items()}
        shapes |= {f"{prefix}attn_norm.weight": (HIDDEN,), f"{prefix}ffn_norm.weight": (HIDDEN,)}
        if architecture == "qwen2":
            for name in ("attn_q", "attn_k", "attn_v"):
                shapes[f"{prefix}{name}.bias"] = MATRICES[name][:1]
        if architecture == "qwen3":
            for name in ("attn_q_norm", "attn_k_norm"):
                shapes[f"{prefix}{name}.weight"] = (HIDDEN // HEADS,)
    return {name: draw.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def metadata(architecture: str = "llama", num_layers: int = 2) -> dict[str, Any]:
    """The metadata that belongs to `tensors`."""
    return {
        f"{architecture}.block_count": num_layers,
        f"{architecture}.context_length": 128,
        f"{architecture}.embedding_length": HIDDEN,
        f"{architecture}.feed_forward_length": FFN,
        f"{architecture}.attention.head_count": HEADS,
        f"{architecture}.attention.head_count_kv": KV_HEADS,
        f"{architecture}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{architecture}.rope.freq_base": 5000.0,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.eot_token_id": 7,
        "tokenizer.ggml.eom_token_id": 9,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.tokens": ["a", "bc", "d"],
        "tokenizer.ggml.scores": [0.5, -1.5],
    }


def write(
    path: Path,
    contents: dict[str, np.ndarray[Any, Any]],
    values: dict[str, Any],
    architecture: str = "llama",
    quantization: gguf.GGMLQuantizationType | None = None,
) -> Path:
    """Write a GGUF file; matrices in the given quantization, all else as it is."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in values.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    for name, tensor in contents.items():
        if quantization is not None and tensor.ndim == 2:
            packed = gguf.quants.quantize(tensor, quantization)
            writer.add_tensor(name, packed, raw_dtype=quantization)
        else:
            writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
