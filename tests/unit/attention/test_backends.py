"""The fast backend agrees with the reference, over whatever a step can look like."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from atom_lite.attention import cpu_plan
from atom_lite.attention.cpu import CpuBackend
from atom_lite.attention.protocol import AttentionMetadata
from atom_lite.attention.reference import ReferenceBackend
from atom_lite.attention.select import select_backend
from atom_lite.errors import ConfigError
from atom_lite_kernels.cpu.attention import load_attention
from atom_lite_kernels.paged_kv import as_stored, is_scaled

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Case:
    """Rows are (prefix, new tokens), decodes first; later ones may have one token too."""

    rows: list[tuple[int, int]]
    num_kv_heads: int = 2
    group: int = 3
    head_size: int = 16
    block_size: int = 4
    window: int | None = None
    dtype: torch.dtype = torch.float32
    kv_dtype: torch.dtype | None = None  # of the cache; None: dtype
    seed: int = 0


DECODES = st.lists(st.tuples(st.integers(0, 70), st.just(1)), max_size=4)
CHUNKS = st.lists(
    st.tuples(st.integers(0, 70), st.one_of(st.just(1), st.integers(1, 40))), max_size=4
)


CASES = st.builds(
    Case,
    rows=st.builds(lambda decodes, chunks: decodes + chunks, DECODES, CHUNKS).filter(bool),
    num_kv_heads=st.integers(1, 3),
    group=st.sampled_from([1, 2, 3, 8]),
    head_size=st.sampled_from([4, 8, 10, 16]),
    block_size=st.sampled_from([1, 3, 16]),
    window=st.none() | st.integers(1, 50),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    kv_dtype=st.sampled_from(
        [None, torch.float32, torch.bfloat16, torch.int8, torch.float8_e4m3fn]
    ),
    seed=st.integers(0, 2**16),
)


def check(case: Case) -> None:
    """All backends from the same cache: same outputs, same cache afterwards."""
    generator = torch.Generator().manual_seed(case.seed)
    lens = [new for _, new in case.rows]
    contexts = [prefix + new for prefix, new in case.rows]
    needed = [-(-context // case.block_size) for context in contexts]
    pool = random.Random(case.seed).sample(range(sum(needed) + 2), sum(needed))
    tables = [[pool.pop() for _ in range(count)] for count in needed]
    metadata = AttentionMetadata.build(lens, contexts, tables, case.block_size)
    tokens, num_heads = sum(lens), case.num_kv_heads * case.group

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(case.dtype)

    qkv = randn(tokens, num_heads + 2 * case.num_kv_heads, case.head_size)
    q, k, v = qkv.split((num_heads, case.num_kv_heads, case.num_kv_heads), dim=1)
    kv_dtype = case.kv_dtype or case.dtype
    old = randn(sum(needed) + 2, 2, case.num_kv_heads, case.block_size, case.head_size)
    results = []
    compiled = CpuBackend(load_attention())
    backends = (ReferenceBackend(), CpuBackend(), compiled)
    for backend in backends:
        (kv,) = backend.allocate_kv(
            1, len(old), case.block_size, case.num_kv_heads, case.head_size, kv_dtype, CPU
        )
        pages, scales = as_stored(old, kv_dtype)
        kv.pages.copy_(pages)
        if kv.scales is not None:
            kv.scales.copy_(scales)
        prepared = backend.prepare(metadata)
        out = backend.attend(q, k, v, kv, prepared, scale=0.4, sliding_window=case.window)
        results.append((out, kv))
    (expected, expected_kv), *others = results
    tolerance = 1e-5 if case.dtype == torch.float32 else 4e-2
    for out, kv in others:
        assert out.shape == q.shape
        assert out.is_contiguous()
        assert torch.equal(kv.pages.float(), expected_kv.pages.float())
        assert not is_scaled(kv_dtype) or torch.equal(kv.scales, expected_kv.scales)
        torch.testing.assert_close(out, expected, atol=tolerance, rtol=tolerance)


@settings(max_examples=150, deadline=None)
@given(case=CASES)
def test_cpu_equals_reference(case: Case) -> None:
    check(case)


@pytest.mark.full
@settings(max_examples=3000, deadline=None)
@given(case=CASES)
def test_cpu_equals_reference_many(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("window", [None, 5, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_chunk_of_several_row_blocks(window: int | None, dtype: torch.dtype) -> None:
    length = 2 * cpu_plan.BLOCK_ROWS + 3
    check(Case(rows=[(9, 1), (33, length), (0, 2)], block_size=16, window=window, dtype=dtype))


@pytest.mark.parametrize("window", [None, 5, 60])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_chunk_of_one_token_may_follow_a_longer_one(
    window: int | None, dtype: torch.dtype
) -> None:
    """It got the last token of the budget, or all else of its prompt was cached."""
    check(Case(rows=[(3, 1), (0, 30), (70, 1), (8, 2)], window=window, dtype=dtype))


@pytest.mark.parametrize("group_bytes", [1, 4000, 20_000])
@pytest.mark.parametrize("window", [None, 20])
def test_decodes_in_several_groups(
    monkeypatch: pytest.MonkeyPatch, group_bytes: int, window: int | None
) -> None:
    monkeypatch.setattr(cpu_plan, "GROUP_BYTES", group_bytes)
    prefixes = [3, 90, 0, 41, 40, 7, 89, 12]
    check(Case(rows=[(prefix, 1) for prefix in prefixes], window=window))


class Poisoned:
    """One cache of 4 blocks of 4 slots, and steps of single rows over it."""

    def __init__(self, name: str, dtype: torch.dtype) -> None:
        self.backend = select_backend(name, CPU)
        self.dtype = dtype
        (self.kv,) = self.backend.allocate_kv(1, 4, 4, 1, 8, dtype, CPU)
        self.generator = torch.Generator().manual_seed(0)

    def draw(self, tokens: int, heads: int) -> torch.Tensor:
        return torch.randn(tokens, heads, 8, generator=self.generator).to(self.dtype)

    def attend(
        self, lens: list[int], contexts: list[int], tables: list[list[int]], k: Any, v: Any, q: Any
    ) -> torch.Tensor:
        prepared = self.backend.prepare(AttentionMetadata.build(lens, contexts, tables, 4))
        return self.backend.attend(q, k, v, self.kv, prepared, scale=1.0, sliding_window=None)


POISONS = [float("nan"), float("inf"), float("-inf"), 6e4]
PRECISIONS = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("name", ["cpu", "reference"])
@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("poison", POISONS)
def test_what_a_sequence_overflows_into_stays_its_own(
    name: str, dtype: torch.dtype, poison: float
) -> None:
    cache = Poisoned(name, dtype)
    q, k, v = cache.draw(11, 2), cache.draw(11, 1), cache.draw(11, 1)
    k[6], v[6] = poison, -poison
    out = cache.attend([11], [11], [[2, 0, 1]], k, v, q)
    clean = Poisoned(name, dtype).attend([6], [6], [[2, 0]], k[:6], v[:6], q[:6])
    tolerance = 1e-5 if dtype == torch.float32 else 4e-2
    torch.testing.assert_close(out[:6], clean, atol=tolerance, rtol=tolerance)
    # Its middle block goes to another sequence, whose last slots it still fills, and whose row is
    # padded to the width of the first one's.
    q, k, v = cache.draw(2, 2), cache.draw(2, 1), cache.draw(2, 1)
    q *= 9
    together = cache.attend([1, 1], [2, 9], [[0], [2, 3, 1]], k, v, q)
    again = Poisoned(name, dtype)
    again.kv.pages[0, :, :, 0] = cache.kv.pages[0, :, :, 0]
    alone = again.attend([1], [2], [[0]], k[:1], v[:1], q[:1])
    torch.testing.assert_close(together[:1], alone, atol=tolerance, rtol=tolerance)


def test_a_backend_tells_the_bytes_that_it_allocates() -> None:
    for name in ("cpu", "reference"):
        backend = select_backend(name, CPU)
        cache = backend.allocate_kv(3, 5, 16, 2, 8, torch.bfloat16, CPU)
        allocated = sum(layer.pages.nbytes for layer in cache)
        assert allocated == 5 * backend.kv_bytes_per_block(3, 16, 2, 8, torch.bfloat16)
        assert not any(layer.pages.any() for layer in cache)


def test_the_cache_is_resident_only_where_it_is_used() -> None:
    import psutil

    process = psutil.Process()
    before = process.memory_info().rss
    (layer,) = CpuBackend().allocate_kv(1, 1 << 16, 16, 2, 64, torch.float32, CPU)
    assert layer.pages.nbytes == 1 << 30
    layer.pages[0] = 1.0
    assert process.memory_info().rss - before < 64 << 20


def test_auto_takes_the_cpu_backend_on_a_cpu_and_the_reference_elsewhere() -> None:
    assert select_backend("auto", CPU).name == "cpu"
    assert select_backend("auto", torch.device("meta")).name == "reference"


def test_an_unsuitable_backend_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="'flash' is unknown"):
        select_backend("flash", CPU)
    with pytest.raises(ConfigError, match="cpu does not run on device 'cuda'"):
        select_backend("cpu", torch.device("cuda"))
