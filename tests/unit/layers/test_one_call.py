"""All layers in one call give the bits that layer by layer gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor

from atom_lite.attention.protocol import AttentionMetadata
from atom_lite.attention.reference import ReferenceBackend
from atom_lite.attention.select import select_backend
from atom_lite.layers.embedding import Embedding
from atom_lite.layers.grouped_weight import quantize
from atom_lite.layers.linear import GatedLinear, Linear
from atom_lite.layers.mlp import GatedMlp
from atom_lite.layers.norm import RmsNorm
from atom_lite.layers.one_call import one_call
from atom_lite.layers.rope import RotaryEmbedding
from atom_lite.layers.rope_parameters import RopeParameters
from atom_lite.models.decoder import Attention, Decoder, DecoderLayer, HeadNorm
from atom_lite_kernels.cpu.linear import load_linear

if TYPE_CHECKING:
    from collections.abc import Callable

    from atom_lite.layers.grouped_weight import Weight

pytestmark = pytest.mark.skipif(load_linear() is None, reason="this machine has no C++ compiler")

CPU = torch.device("cpu")
HIDDEN, INNER, HEADS, KV_HEADS, HEAD_SIZE, VOCAB = 96, 160, 6, 2, 16, 50
BLOCK_SIZE, NUM_BLOCKS = 4, 120
BACKEND = select_backend("auto", CPU)

KINDS: dict[str, Callable[[Tensor], Weight]] = {
    "float32": lambda weight: weight,
    "bfloat16": lambda weight: weight.bfloat16(),
    "4 bits": lambda weight: quantize(weight, 4),
    "8 bits": lambda weight: quantize(weight, 8),
}


@dataclass(frozen=True)
class Shape:
    """What a layer's attention reads of a model's spec."""

    num_heads: int = HEADS
    num_kv_heads: int = KV_HEADS
    head_size: int = HEAD_SIZE


def matrix(rows: int, columns: int) -> Tensor:
    return torch.randn(rows, columns) / columns**0.5


def norm() -> RmsNorm:
    return RmsNorm(torch.rand(HIDDEN) + 0.5, 1e-5)


def layer(
    kinds: tuple[str, str, str], *, bias: bool = False, window: int | None = None
) -> DecoderLayer:
    """A random layer; `kinds` of q and k, of v, and of all else."""
    first, second, other = (KINDS[kind] for kind in kinds)
    sizes = (HEADS * HEAD_SIZE, 2 * KV_HEADS * HEAD_SIZE)
    qkv = [first(matrix(sizes[0], HIDDEN)), second(matrix(sizes[1], HIDDEN))]
    attention = Attention(
        qkv=Linear(qkv, torch.randn(sum(sizes)) if bias else None),
        output=Linear(other(matrix(HIDDEN, sizes[0])), torch.randn(HIDDEN) if bias else None),
        qk_norm=None,
        backend=BACKEND,
        spec=Shape(),
        window=window,
    )
    mlp = GatedMlp(
        GatedLinear(other(matrix(2 * INNER, HIDDEN)), torch.randn(2 * INNER) if bias else None),
        Linear(other(matrix(HIDDEN, INNER)), torch.randn(HIDDEN) if bias else None),
    )
    return DecoderLayer(norm(), attention, norm(), mlp)


def decoder(layers: list[DecoderLayer], *, at_once: bool) -> Decoder:
    call = one_call(
        [one.weights() for one in layers], BACKEND, num_heads=HEADS, scale=HEAD_SIZE**-0.5
    )
    assert call is not None
    torch.manual_seed(5)
    return Decoder(
        Embedding(matrix(VOCAB, HIDDEN)),
        RotaryEmbedding(RopeParameters(), HEAD_SIZE, 512, torch.float32, CPU),
        layers,
        norm=norm(),
        head=None,
        backend=BACKEND,
        one_call=call if at_once else None,
    )


def step(decoder: Decoder, kv: list, new: list[int], prefixes: list[int]) -> Tensor:
    """One step of rows of so many new tokens on so long prefixes; blocks lie in any order."""
    draw = torch.Generator().manual_seed(len(new) + sum(prefixes))
    order = torch.randperm(NUM_BLOCKS, generator=torch.Generator().manual_seed(2)).tolist()
    contexts = [one + prefix for one, prefix in zip(new, prefixes, strict=True)]
    tables = [
        order[row * 12 : row * 12 + -(-context // BLOCK_SIZE)]
        for row, context in enumerate(contexts)
    ]
    metadata = AttentionMetadata.build(new, contexts, tables, BLOCK_SIZE)
    positions = [
        p for one, prefix in zip(new, prefixes, strict=True) for p in range(prefix, prefix + one)
    ]
    ids = torch.randint(VOCAB, (sum(new),), generator=draw)
    return decoder.forward(ids, torch.tensor(positions), kv, metadata)


def outputs(decoder: Decoder, kv_type: torch.dtype, rows: int) -> list[Tensor]:
    """Prompts, then two steps of decodes, over a cache of their own."""
    kv = BACKEND.allocate_kv(
        *(len(decoder._layers), NUM_BLOCKS, BLOCK_SIZE, KV_HEADS, HEAD_SIZE, kv_type, CPU)
    )
    lengths = [3 + 4 * row for row in range(rows)]
    found = [step(decoder, kv, lengths, [0] * rows)]
    for later in range(2):
        found.append(step(decoder, kv, [1] * rows, [length + later for length in lengths]))
    return found


def assert_same(layers: list[DecoderLayer], kv_type: torch.dtype, rows: int) -> None:
    by_layer = outputs(decoder(layers, at_once=False), kv_type, rows)
    at_once = outputs(decoder(layers, at_once=True), kv_type, rows)
    assert all(map(torch.equal, at_once, by_layer))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 9])
def test_decodes_have_the_same_bits_in_every_format(kind: str, rows: int) -> None:
    assert_same([layer((kind, kind, kind)) for _ in range(2)], torch.bfloat16, rows)


@pytest.mark.parametrize(
    "kv_type", [torch.float32, torch.bfloat16, torch.int8, torch.float8_e4m3fn]
)
def test_decodes_have_the_same_bits_over_every_cache(kv_type: torch.dtype) -> None:
    assert_same([layer(("bfloat16", "bfloat16", "bfloat16"))], kv_type, 3)


def test_parts_of_several_formats_biases_and_windows_are_served() -> None:
    layers = [
        layer(("4 bits", "8 bits", "bfloat16"), bias=True, window=5),
        layer(("8 bits", "float32", "4 bits"), bias=True),
    ]
    assert_same(layers, torch.bfloat16, 4)


def test_steps_of_decodes_do_not_go_layer_by_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    served = decoder([layer(("float32", "float32", "float32"))], at_once=True)
    kv = BACKEND.allocate_kv(*(1, NUM_BLOCKS, BLOCK_SIZE, KV_HEADS, HEAD_SIZE, torch.float32, CPU))
    step(served, kv, [5, 6], [0, 0])
    monkeypatch.delattr(DecoderLayer, "forward")
    assert step(served, kv, [1, 1], [5, 6]).isfinite().all()
    with pytest.raises(AttributeError, match="forward"):
        step(served, kv, [1, 2], [6, 7])  # a chunk of a prompt does


def test_a_cache_of_another_place_is_noticed() -> None:
    """A runner that is reset and a second cache of the same shape."""
    served = decoder([layer(("float32", "float32", "float32"))], at_once=True)
    first, second = (outputs(served, torch.float32, 2) for _ in range(2))
    assert all(map(torch.equal, first, second))


def test_what_the_kernel_does_not_serve_goes_layer_by_layer() -> None:
    good = layer(("float32", "float32", "float32"))
    weights = good.weights()
    options = {"num_heads": HEADS, "scale": 0.25}
    assert one_call([weights, None], BACKEND, **options) is None
    assert one_call([], BACKEND, **options) is None
    assert one_call([weights], ReferenceBackend(), **options) is None
    good._attention.qk_norm = HeadNorm(torch.ones(HEADS + KV_HEADS, HEAD_SIZE), 1e-5)
    assert good.weights() is None
    half = GatedLinear([matrix(8, 32), matrix(8, 32).bfloat16()])
    assert half.panels() is None
