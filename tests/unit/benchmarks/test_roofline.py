"""The floor of a step, and which part of it a kernel belongs to."""

import ctypes
import ctypes.util
from types import SimpleNamespace

import pytest

from benchmarks.kernel_clock import KernelClock, _ClockedLibrary, part_of
from benchmarks.roofline import RATE_REPEATS, Case, Rates, best_seconds, cases, floors, torch_part

SPEC = SimpleNamespace(
    num_heads=4,
    num_kv_heads=2,
    head_size=8,
    num_layers=2,
    hidden_size=32,
    intermediate_size=64,
    vocab_size=100,
)


def test_a_decode_is_bound_by_reading_weights_and_cache() -> None:
    case = Case(name="decode 2", rows=2, new_tokens=1, prefix_tokens=9)
    fast = Rates(bytes_per_second=1e3, flops=1e15)
    least = floors(case, SPEC, 5000, 50.0, fast)
    weights = 2 * (32 * (2 * 4 + 2 * 2) * 8 + 3 * 32 * 64)
    head = 5.0 * 32 * 100 / (weights + 32 * 100)
    assert least["linear"] == pytest.approx(head)
    assert least["layers"] == pytest.approx(5.0 - head + 2 * 10 * 50 / 1e3)
    assert least["attention"] == least["Python"] == least["other"] == 0.0


def test_a_prefill_is_bound_by_its_products() -> None:
    case = Case(name="prefill 3", rows=1, new_tokens=3, prefix_tokens=0)
    slow = Rates(bytes_per_second=1e15, flops=1.0)
    least = floors(case, SPEC, 5000, 50.0, slow)
    weights = 2 * (32 * (2 * 4 + 2 * 2) * 8 + 3 * 32 * 64)
    assert least["linear"] == 2 * (3 * weights + 32 * 100)
    assert least["attention"] == 4 * 2 * 4 * 8 * (1 + 2 + 3)
    assert least["layers"] == 0.0


def test_kernels_and_operators_have_a_part() -> None:
    assert part_of("atom_lite_linear_f32") == "linear"
    assert part_of("atom_lite_prefill_attention") == "attention"
    assert part_of("atom_lite_layers") == "layers"
    assert part_of("atom_lite_rms_norm_f32") == "other"
    assert torch_part("mkldnn::_linear_pointwise") == "linear"
    assert torch_part("aten::bmm") == "attention"
    assert torch_part("aten::empty") == "other"


def test_a_clocked_function_keeps_its_signature_and_adds_its_time() -> None:
    clock = KernelClock()
    clock.reset()
    library = _ClockedLibrary(ctypes.CDLL(ctypes.util.find_library("c")), clock)
    library.labs.restype, library.labs.argtypes = ctypes.c_long, (ctypes.c_long,)
    assert library.labs(-(2**40)) == 2**40
    assert clock.seconds["other"] > 0.0


def test_a_slow_rate_is_taken_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    assert best_seconds(lambda: calls.append(1)) > 0.0
    assert len(calls) == RATE_REPEATS
    monkeypatch.setattr("benchmarks.roofline.SLOW_SECONDS", 0.0)
    best_seconds(lambda: calls.append(1))
    assert len(calls) == RATE_REPEATS + 1


def test_quick_leaves_the_long_cases_out() -> None:
    assert [case.name for case in cases(384, quick=True)] == ["prefill 512", "decode 1", "decode 8"]
    assert len(cases(384, quick=False)) == 6
