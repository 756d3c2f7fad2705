"""The decoder that all supported families share: Llama's, with optional biases, q/k norm, windows.

Runs in the engine process on the flattened tokens of a step: linear layers see one matrix of all
rows, only attention looks at sequences. Small steps are bound by the cost of calling operators, so
a layer is few of them: q, k and v are one matrix, gate and up another, the rotation turns q and k
together and in place. No Hugging Face code is involved.

Legend: T tokens of the step, R rows to sample from, E hidden size, Hq / Hk query / KV heads, D head
size, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from atom_lite.layers.one_call import LayerWeights
from atom_lite.layers.rope import rotate_

if TYPE_CHECKING:
    from atom_lite.attention.protocol import AttentionMetadata, Backend, LayerKV
    from atom_lite.layers.embedding import Embedding
    from atom_lite.layers.linear import Linear
    from atom_lite.layers.mlp import GatedMlp
    from atom_lite.layers.norm import RmsNorm
    from atom_lite.layers.one_call import OneCall
    from atom_lite.layers.rope import RotaryEmbedding
    from atom_lite.models.spec import ModelSpec


class Head(Protocol):
    """The output head."""

    weight_bytes: int

    def forward(self, x: Tensor) -> Tensor:
        """Map [R, E] to logits [R, V]."""


@dataclass(frozen=True, slots=True)
class Step:
    """What all layers of one step share."""

    cos: Tensor  # [T, 1, D]
    sin: Tensor
    prepared: Any  # the backend's own; None skips attention


class Attention:
    """Self-attention of one layer.

    Args:
        qkv: one matrix of (Hq + 2 Hk) * D rows: q, then k, then v.
        output: back to E.
        qk_norm: norm of each head of q and k [Hq + Hk, D] before the rotation, or None.
        backend: attends over the paged cache.
        spec: the model.
        window: tokens of the sliding window, or None.
    """

    def __init__(
        self,
        qkv: Linear,
        output: Linear,
        qk_norm: HeadNorm | None,
        backend: Backend,
        spec: ModelSpec,
        window: int | None,
    ) -> None:
        self.qkv = qkv
        self.output = output
        self.qk_norm = qk_norm
        self.window = window
        self._backend = backend
        self._num_heads = spec.num_heads
        self._num_kv_heads = spec.num_kv_heads
        self._head_size = spec.head_size
        self._scale = spec.head_size**-0.5
        self.weight_bytes = qkv.weight_bytes + output.weight_bytes
        if qk_norm is not None:
            self.weight_bytes += qk_norm.weight_bytes

    def add_to(self, residual: Tensor, x: Tensor, kv: LayerKV, step: Step) -> None:
        """Add this layer's answer to x [T, E] to the residual stream [T, E], in place.

        The new keys and values are written into `kv`.
        """
        heads = self.qkv.forward(x).view(x.shape[0], -1, self._head_size)  # [T, Hq + 2 Hk, D]
        rotated = heads[:, : self._num_heads + self._num_kv_heads]
        if self.qk_norm is not None:
            rotated.copy_(self.qk_norm.forward(rotated))
        rotate_(rotated, step.cos, step.sin)
        if step.prepared is None:
            queries = heads[:, : self._num_heads].reshape(x.shape[0], -1)
            self.output.add_to(residual, queries)
            return
        attended = self._backend.attend(
            heads[:, : self._num_heads],
            heads[:, self._num_heads : -self._num_kv_heads],
            heads[:, -self._num_kv_heads :],
            kv,
            step.prepared,
            scale=self._scale,
            sliding_window=self.window,
        )
        self.output.add_to(residual, attended.view(x.shape[0], -1))


class HeadNorm:
    """Root-mean-square norm of each head, with one weight for q and another for k.

    Args:
        weight: [Hq + Hk, D], kept.
        epsilon: added to the mean square.
    """

    def __init__(self, weight: Tensor, epsilon: float) -> None:
        self._weight = weight
        self._epsilon = epsilon
        self.weight_bytes = weight.numel() * weight.element_size()

    def forward(self, heads: Tensor) -> Tensor:
        """Normalise [T, Hq + Hk, D] over D."""
        size = heads.shape[-1:]
        normed = torch.nn.functional.rms_norm(heads, size, None, self._epsilon)
        return normed.mul_(self._weight)


class DecoderLayer:
    """Attention and feed-forward, each behind a norm and added to the residual stream."""

    def __init__(
        self,
        attention_norm: RmsNorm,
        attention: Attention,
        mlp_norm: RmsNorm,
        mlp: GatedMlp,
    ) -> None:
        self._attention_norm = attention_norm
        self._attention = attention
        self._mlp_norm = mlp_norm
        self._mlp = mlp
        parts = (attention_norm, attention, mlp_norm, mlp)
        self.weight_bytes = sum(part.weight_bytes for part in parts)

    def forward(self, x: Tensor, kv: LayerKV, step: Step) -> None:
        """Add this layer's part to the residual stream x [T, E], in place."""
        self._attention.add_to(x, self._attention_norm.forward(x), kv, step)
        self._mlp.add_to(x, self._mlp_norm.forward(x))

    def weights(self) -> LayerWeights | None:
        """What one call for all layers reads; None where it does not serve this one."""
        qkv, output = self._attention.qkv.panels(), self._attention.output.panels()
        gate_up, down = self._mlp.gate_up.panels(), self._mlp.down.panels()
        if self._attention.qk_norm is not None:
            return None
        if qkv is None or output is None or gate_up is None or down is None:
            return None
        return LayerWeights(
            attention_norm=(self._attention_norm.weight, self._attention_norm.epsilon),
            qkv=qkv,
            output=output,
            mlp_norm=(self._mlp_norm.weight, self._mlp_norm.epsilon),
            gate_up=gate_up[0],
            down=down,
            window=self._attention.window,
        )


class Decoder:
    """The layers of one pipeline stage; of a whole model where there is only one.

    Args:
        embedding: in the first stage, else None.
        rope: angles for all layers.
        layers: of this stage.
        norm: in the last stage, else None.
        head: in the last stage, else None.
        backend: attends over the paged cache.
        one_call: runs all layers at once where it can; None: one by one.
    """

    def __init__(
        self,
        embedding: Embedding | None,
        rope: RotaryEmbedding,
        layers: list[DecoderLayer],
        norm: RmsNorm | None,
        head: Head | None,
        backend: Backend,
        one_call: OneCall | None = None,
    ) -> None:
        self._embedding = embedding
        self._rope = rope
        self._layers = layers
        self._norm = norm
        self._head = head
        self._backend = backend
        self._one_call = one_call

    @torch.inference_mode()
    def forward(
        self,
        inputs: Tensor,
        positions: Tensor,
        kv: list[LayerKV],
        metadata: AttentionMetadata | None,
    ) -> Tensor:
        """Run one step.

        Args:
            inputs: token ids [T] int64 in the first stage; in later ones the hidden states [T, E]
                of the stage before, written.
            positions: [T] int64, of each token in its sequence.
            kv: the cache of each layer, written at the step's slots.
            metadata: how the tokens belong to sequences; None leaves attention out, to time the
                rest alone.

        Returns:
            [T, E], hidden states; after the final norm in the last stage.
        """
        cos, sin = self._rope.select(positions)
        prepared = None if metadata is None else self._backend.prepare(metadata)
        x = inputs if self._embedding is None else self._embedding.forward(inputs)
        if self._one_call is None or not self._one_call.run(x, kv, cos, sin, prepared):
            step = Step(cos, sin, prepared)
            for layer, layer_kv in zip(self._layers, kv, strict=True):
                layer.forward(x, layer_kv, step)
        return x if self._norm is None else self._norm.forward(x)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Map hidden states [R, E] to logits [R, V] in float32; last stage only."""
        assert self._head is not None
        return self._head.forward(hidden).float()

    def weight_bytes(self) -> int:
        """Bytes that the weights hold; a tied head counts once."""
        parts = (self._embedding, *self._layers, self._norm, self._head)
        return sum(part.weight_bytes for part in parts if part is not None)
