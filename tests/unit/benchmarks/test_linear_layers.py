"""The linear layers' floors, and that every format runs through the kernel."""

import pytest

from atom_lite_kernels.cpu.linear import load_linear
from benchmarks.linear_layers import FORMATS, Shapes, floor_seconds, markdown, study
from benchmarks.roofline import Rates

SMALL = Shapes(layers=2, hidden=32, qkv=64, attended=32, inner=64)


def test_the_floors_are_the_bytes_and_the_products() -> None:
    rates = Rates(bytes_per_second=1e3, flops=1e6)
    assert SMALL.numbers == 2 * 32 * (64 + 32 + 3 * 64)
    assert floor_seconds(SMALL, 500, 3, rates) == (0.5, 2 * 3 * SMALL.numbers / 1e6)


@pytest.mark.skipif(load_linear() is None, reason="this machine has no C++ compiler")
def test_every_format_is_measured_for_every_number_of_rows() -> None:
    document = study(SMALL, [1, 9], repeats=1)
    assert [(row["format"], row["rows"]) for row in document["rows"]] == [
        (name, rows) for name in FORMATS for rows in (1, 9)
    ]
    assert document["weight_bytes"]["float32"] == 4 * SMALL.numbers
    assert document["weight_bytes"]["4 bits"] < document["weight_bytes"]["8 bits"]
    page = markdown(document | {"command": "x"})
    assert page.count("\n| 4 bits |") == 2
