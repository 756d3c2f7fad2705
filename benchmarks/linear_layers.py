"""The linear layers of a model against the hardware: `benchmarks.linear_layers`.

    python -m benchmarks.linear_layers --output benchmarks/results/linear-layers

Random weights of a decoder's shapes (default: SmolLM2-135M) in every format that our compiled
kernel reads, times several numbers of rows. All layers are run in turn, so weights come from memory
as they do in a model. The floor is the larger of two: the weights' bytes at this machine's read
rate, and the products at its float32 matrix rate, as a weight in any format is multiplied in
float32. Formats take turns within a repeat, because the speed of a shared machine drifts. Writes
OUTPUT.json and OUTPUT.md. One process, no server.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from atom_lite.layers.grouped_weight import quantize
from atom_lite.layers.linear import GatedLinear, Linear
from atom_lite_kernels.cpu.linear import load_linear
from benchmarks import report
from benchmarks.roofline import Rates, measured_rates
from benchmarks.stream_client import LoadError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from atom_lite.layers.grouped_weight import Weight

FORMATS: dict[str, Callable[[Tensor], Weight]] = {
    "float32": lambda weight: weight,
    "bfloat16": lambda weight: weight.bfloat16(),
    "8 bits": lambda weight: quantize(weight, 8),
    "4 bits": lambda weight: quantize(weight, 4),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """Sizes of a decoder's matrices."""

    layers: int
    hidden: int
    qkv: int  # columns of q, k and v
    attended: int  # columns of q
    inner: int

    @property
    def numbers(self) -> int:
        """Of all layers."""
        per_layer = self.hidden * (self.qkv + self.attended + 3 * self.inner)
        return self.layers * per_layer


class Stack:
    """All linear layers of a decoder in one format."""

    def __init__(self, shapes: Shapes, hold: Callable[[Tensor], Weight]) -> None:
        def random(rows: int, columns: int) -> Weight:
            return hold(torch.randn(rows, columns) / columns**0.5)

        self._shapes = shapes
        self._layers = [
            (
                Linear(random(shapes.qkv, shapes.hidden)),
                Linear(random(shapes.hidden, shapes.attended)),
                GatedLinear(random(2 * shapes.inner, shapes.hidden)),
                Linear(random(shapes.hidden, shapes.inner)),
            )
            for _ in range(shapes.layers)
        ]
        self.weight_bytes = sum(part.weight_bytes for layer in self._layers for part in layer)

    def run(self, x: Tensor) -> None:
        """Each layer's products for rows x [M, hidden]; what lies between them is left out."""
        for qkv, output, gate_up, down in self._layers:
            output.add_to(x, qkv.forward(x)[:, : self._shapes.attended])
            down.add_to(x, gate_up.forward(x))
            x.div_(x.abs().amax())  # keeps the numbers in range, layer after layer


def floor_seconds(
    shapes: Shapes, weight_bytes: int, rows: int, rates: Rates
) -> tuple[float, float]:
    """The least seconds for reading the weights, and for the products."""
    return weight_bytes / rates.bytes_per_second, 2.0 * rows * shapes.numbers / rates.flops


def medians(stacks: dict[str, Stack], rows: int, hidden: int, repeats: int) -> dict[str, float]:
    """Median seconds of a pass by format."""
    seconds: dict[str, list[float]] = {name: [] for name in stacks}
    for repeat in range(repeats + 1):  # the first warms up
        for name, stack in stacks.items():
            x = torch.randn(rows, hidden)
            started = time.perf_counter()
            stack.run(x)
            if repeat > 0:
                seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(found) for name, found in seconds.items()}


@torch.inference_mode()
def study(shapes: Shapes, rows: list[int], repeats: int) -> dict[str, Any]:
    """Measure everything.

    Raises:
        LoadError: the kernel cannot be built here.
    """
    if load_linear() is None:
        raise LoadError("the compiled kernel is missing: a C++ compiler is needed")
    stacks = {name: Stack(shapes, hold) for name, hold in FORMATS.items()}
    before = measured_rates(torch.float32)
    measured = {count: medians(stacks, count, shapes.hidden, repeats) for count in rows}
    after = measured_rates(torch.float32)
    rates = Rates(
        bytes_per_second=max(before.bytes_per_second, after.bytes_per_second),
        flops=max(before.flops, after.flops),
    )
    found = []
    for name, stack in stacks.items():
        for count in rows:
            reading, products = floor_seconds(shapes, stack.weight_bytes, count, rates)
            found.append(
                {
                    "format": name,
                    "rows": count,
                    "seconds": measured[count][name],
                    "reading_seconds": reading,
                    "products_seconds": products,
                }
            )
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": report.machine(),
        "threads": torch.get_num_threads(),
        "numbers": shapes.numbers,
        "weight_bytes": {name: stack.weight_bytes for name, stack in stacks.items()},
        "repeats": repeats,
        "read_gb_per_second": rates.bytes_per_second / 1e9,
        "gemm_gflops": rates.flops / 1e9,
        "rows": found,
    }


def markdown(document: dict[str, Any]) -> str:
    """The table."""
    machine = document["machine"]
    lines = [
        "# Linear layers by format and rows, against the hardware's floors",
        "",
        f"- Machine: {machine['cpu']}, {machine['cores']} cores, {document['threads']} threads",
        f"- {document['numbers'] / 1e6:.0f} million weights; best rates in this run: "
        f"{document['read_gb_per_second']:.1f} GB/s read, {document['gemm_gflops']:.0f} GFLOP/s of "
        "float32 products",
        f"- Run: `{document['command']}` at {document['time']}",
        "",
        f"Milliseconds for all layers, medians of {document['repeats']}.",
        "",
        "| format | rows | measured | reading weights | products | measured / larger floor |",
        "|---|---|---|---|---|---|",
    ]
    for row in document["rows"]:
        reading, products = row["reading_seconds"], row["products_seconds"]
        lines.append(
            f"| {row['format']} | {row['rows']} | {row['seconds'] * 1e3:.1f} | {reading * 1e3:.1f} "
            f"| {products * 1e3:.1f} | {row['seconds'] / max(reading, products):.2f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    add = parser.add_argument
    add("--layers", type=int, default=30)
    add("--hidden", type=int, default=576)
    add("--heads", type=int, default=9)
    add("--kv-heads", type=int, default=3)
    add("--head-size", type=int, default=64)
    add("--inner", type=int, default=1536)
    add("--rows", type=int, nargs="+", default=[1, 2, 4, 8, 32, 256])
    add("--repeats", type=int, default=9)
    add("--output", type=Path, default=Path("benchmarks/results/linear-layers"))
    options = parser.parse_args()
    attended = options.heads * options.head_size
    shapes = Shapes(
        layers=options.layers,
        hidden=options.hidden,
        qkv=attended + 2 * options.kv_heads * options.head_size,
        attended=attended,
        inner=options.inner,
    )
    try:
        if min(options.repeats, *options.rows) < 1:
            raise LoadError("--repeats and --rows must be at least 1")
        document = study(shapes, options.rows, options.repeats)
    except LoadError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    document["command"] = report.command_line(sys.argv)
    page = markdown(document)
    report.write_pages(options.output, document, page)
    print(page)


if __name__ == "__main__":
    main()
