"""A stage's layers in one call of the compiled kernel, for steps in which every row is a decode.

Such a step is short: with a call for each operation, Python and the waking of threads take a good
part of it. A step with a chunk of a prompt goes layer by layer, where they do not count. Both give
the same bits. Runs in the engine process.

CPU milliseconds of a whole step of SmolLM2-135M at context 128, one thread of a Zen 3, medians of
steps that took turns:

    rows, weights      1, Q4_1   1, bfloat16   1, float32   8, Q4_1   8, bfloat16
    layer by layer         19            24           33        59            74
    one call               12            18           25        48            58
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atom_lite.attention.cpu import CpuBackend
from atom_lite_kernels.cpu.layers import DecodeRows, LayersKernel, load_layers
from atom_lite_kernels.cpu.layers import LayerWeights as LayerWeights

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from atom_lite.attention.protocol import Backend, LayerKV


class OneCall:
    """Runs all layers of a stage. Made by `one_call`."""

    def __init__(self, kernel: LayersKernel, backend: CpuBackend) -> None:
        self._kernel = kernel
        self._backend = backend

    def run(
        self, x: Tensor, kv: Sequence[LayerKV], cos: Tensor, sin: Tensor, prepared: Any
    ) -> bool:
        """Run the layers on the residual stream x [T, E], in place; False: this step is not for it.

        Args:
            x: written.
            kv: the cache of each layer; the same list in every step.
            cos: [T, 1, D] of the rotation, as is sin.
            sin: with its sign.
            prepared: the backend's own; None skips attention.
        """
        if prepared is None or not self._kernel.serves(x):
            return False
        plan = self._backend.plan_decodes(prepared, kv[0])
        if plan is None:
            return False
        rows = DecodeRows(
            cos=cos,
            sin=sin,
            slots=prepared.slot_mapping,
            block_tables=plan.decode_tables,
            context_lens=plan.decode_contexts,
        )
        self._kernel(x, kv, rows)
        return True


def one_call(
    layers: Sequence[LayerWeights | None], backend: Backend, *, num_heads: int, scale: float
) -> OneCall | None:
    """The call for these layers, or None where the kernel does not serve them all.

    Args:
        layers: what each reads; None for one that the kernel does not serve.
        backend: attends where the call does not.
        num_heads: Hq.
        scale: of the scores.
    """
    served = [layer for layer in layers if layer is not None]
    if not served or len(served) < len(layers) or not isinstance(backend, CpuBackend):
        return None
    kernel = load_layers(served, num_heads=num_heads, scale=scale)
    return None if kernel is None else OneCall(kernel, backend)
