"""Where a step's time goes, against what the hardware needs at least: `benchmarks.roofline`.

    python -m benchmarks.roofline --output benchmarks/results/roofline

Runs the real runner (inputs, layers, head, sampling) on plans made here: a prefill of 512, 2048 and
7500 tokens in one step, and decodes of 1, 8 and 32 rows. Time by part, medians over the repeats:

    linear, attention   inside their kernels
    layers              inside the one call for all layers of a step of decodes
    other               the other kernels and torch's operators, which are read from its profiler
    Python              what is left of the step

The floor of a part is the larger of its bytes at this machine's read rate and its operations at its
matrix-product rate; both rates are measured in the same run, before and after, and the best counts.
Only the weights, and keys and values, are counted; a floor of 0 says that the part could vanish.
Writes OUTPUT.json and OUTPUT.md. One process, no server.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from atom_lite.config import CacheConfig, Config, ModelConfig, SchedulerConfig
from atom_lite.messages import SamplingParams, SequenceStart, StepPlan, StepRow
from atom_lite.models.checkpoint import resolve_checkpoint
from atom_lite.models.spec import load_spec
from atom_lite.parallel.spinning import bound_spinning
from atom_lite.worker.runner import Runner
from benchmarks import report
from benchmarks.kernel_clock import OTHER, PARTS, KernelClock, clocked_kernels
from benchmarks.peers.checkpoints import default_gguf
from benchmarks.stream_client import LoadError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from atom_lite.models.spec import ModelSpec

PREFILLS = (512, 2048, 7500)
DECODES = (1, 8, 32)
PYTHON = "Python"
BLOCK_SIZE = 16
READ_BYTES = 256 * 2**20
GEMM_SIZE = 1536
RATE_REPEATS = 7
SLOW_SECONDS = 1.0  # of one run, which takes a tenth of that on two cores
FILL_TOKENS = 512  # of a chunk that only fills the cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One step's shape: rows of so many new tokens on so long a prefix."""

    name: str
    rows: int
    new_tokens: int
    prefix_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What the machine does at best."""

    bytes_per_second: float
    flops: float


class Steps:
    """Makes plans for a runner and keeps its sequences."""

    def __init__(self, runner: Runner, block_size: int) -> None:
        self._runner = runner
        self._block_size = block_size
        self._step_id = 0
        self._sequence = 0

    def run(self, rows: list[StepRow], starts: Sequence[SequenceStart] = ()) -> None:
        """One step."""
        self._step_id += 1
        self._runner.run(StepPlan(step_id=self._step_id, starts=list(starts), rows=rows))

    def prepare(self, case: Case) -> Callable[[], None]:
        """Fill the prefixes of a case; what is returned runs its step, again and again."""
        self._runner.reset()
        total = case.prefix_tokens + case.new_tokens
        blocks = -(-total // self._block_size)
        first = self._sequence
        self._sequence += case.rows
        for row in range(case.rows):
            start = SequenceStart(
                sequence_id=first + row,
                epoch=0,
                token_ids=[(7 * index + row) % 1000 + 100 for index in range(total)],
                num_prompt_tokens=total,
                sampling=SamplingParams(max_tokens=4096, temperature=0.0),
            )
            ids = list(range(row * blocks, (row + 1) * blocks))
            self._fill(start, case.prefix_tokens, ids)
        rows = [
            StepRow(
                sequence_id=first + row,
                epoch=0,
                start=case.prefix_tokens,
                num_tokens=case.new_tokens,
                sample=True,
                token_ids=[100] if case.new_tokens == 1 else [],
            )
            for row in range(case.rows)
        ]
        return lambda: self.run(rows)

    def _fill(self, start: SequenceStart, prefix_tokens: int, blocks: list[int]) -> None:
        """Compute a prefix in chunks; a case without one starts with its first token."""
        at = 0
        while at < max(prefix_tokens, 1):
            new = min(FILL_TOKENS, max(prefix_tokens, 1) - at)
            row = StepRow(
                sequence_id=start.sequence_id,
                epoch=0,
                start=at,
                num_tokens=new,
                sample=False,
                new_block_ids=blocks if at == 0 else [],
            )
            self.run([row], [start] if at == 0 else [])
            at += new


def measure(
    step: Callable[[], None], clock: KernelClock, repeats: int
) -> tuple[dict[str, float], float]:
    """Median seconds by part and of the whole step."""
    step()
    torch_parts = torch_seconds(step)
    parts: dict[str, list[float]] = {name: [] for name in (*PARTS, OTHER, PYTHON)}
    totals = []
    for _ in range(repeats):
        clock.reset()
        started = time.perf_counter()
        step()
        total = time.perf_counter() - started
        inside = {name: clock.seconds[name] + torch_parts[name] for name in (*PARTS, OTHER)}
        for name, seconds in inside.items():
            parts[name].append(seconds)
        parts[PYTHON].append(max(0.0, total - sum(inside.values())))
        totals.append(total)
    return {name: statistics.median(row) for name, row in parts.items()}, statistics.median(totals)


def torch_seconds(step: Callable[[], None]) -> dict[str, float]:
    """Time inside torch's own operators by part, from one profiled step."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        step()
    found = dict.fromkeys((*PARTS, OTHER), 0.0)
    for event in profiler.key_averages():
        if event.key.startswith(("aten::", "mkldnn::")):
            found[torch_part(event.key)] += event.self_cpu_time_total / 1e6
    return found


def torch_part(operator: str) -> str:
    """The part that one of torch's operators belongs to."""
    name = operator.split("::")[1]
    if name in ("mm", "addmm", "linear", "_linear_pointwise"):
        return "linear"
    if name in ("bmm", "baddbmm", "softmax", "_softmax") or "attention" in name:
        return "attention"
    return OTHER


def measured_rates(dtype: torch.dtype) -> Rates:
    """Best read rate and best matrix-product rate, in float32 or in the weights' own type."""
    data = torch.ones(READ_BYTES // 4)
    read = best_seconds(data.sum)
    flops = 0.0
    for kind in {torch.float32, dtype}:
        a = torch.ones(GEMM_SIZE, GEMM_SIZE, dtype=kind)
        flops = max(flops, 2 * GEMM_SIZE**3 / best_seconds(partial(torch.mm, a, a)))
    return Rates(bytes_per_second=READ_BYTES / read, flops=flops)


def best_seconds(call: Callable[[], Any]) -> float:
    """The best of a few runs; a first one that is slow stands alone.

    Where a CPU has no instructions for bfloat16, torch multiplies thirty times slower in it, and a
    few runs would take minutes to tell what float32 tells.
    """
    first = _seconds(call)
    if first > SLOW_SECONDS:
        return first
    return min(first, *(_seconds(call) for _ in range(RATE_REPEATS - 1)))


def _seconds(call: Callable[[], Any]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def floors(
    case: Case, spec: ModelSpec, weight_bytes: int, kv_token_bytes: float, rates: Rates
) -> dict[str, float]:
    """The least seconds of each part.

    Args:
        case: the step.
        spec: the model.
        weight_bytes: all weights, the tied head once; every step that samples reads them all. What
            the head takes of them goes by the count of its numbers.
        kv_token_bytes: keys and values of one token over all layers.
        rates: of this machine.
    """
    heads = (2 * spec.num_heads + 2 * spec.num_kv_heads) * spec.head_size
    layers = spec.num_layers * spec.hidden_size * (heads + 3 * spec.intermediate_size)
    head = spec.hidden_size * spec.vocab_size

    def product(numbers: float, rows: int) -> float:
        """Rows times a share of the weights."""
        read = weight_bytes * numbers / (layers + head)
        return max(read / rates.bytes_per_second, 2.0 * rows * numbers / rates.flops)

    in_layers = product(layers, case.rows * case.new_tokens)
    pairs = case.rows * (
        case.new_tokens * case.prefix_tokens + case.new_tokens * (case.new_tokens + 1) / 2
    )
    attention = 4.0 * spec.num_layers * spec.num_heads * spec.head_size * pairs
    read = case.rows * (case.prefix_tokens + case.new_tokens) * kv_token_bytes
    attending = max(read / rates.bytes_per_second, attention / rates.flops)
    at_once = case.new_tokens == 1
    return {
        "linear": product(head, case.rows) + (0.0 if at_once else in_layers),
        "attention": 0.0 if at_once else attending,
        "layers": in_layers + attending if at_once else 0.0,
        OTHER: 0.0,
        PYTHON: 0.0,
    }


def cases(context_tokens: int, *, quick: bool) -> list[Case]:
    """The steps that are measured."""
    found = [
        Case(name=f"prefill {tokens}", rows=1, new_tokens=tokens, prefix_tokens=0)
        for tokens in (PREFILLS[:1] if quick else PREFILLS)
    ]
    return found + [
        Case(name=f"decode {rows}", rows=rows, new_tokens=1, prefix_tokens=context_tokens)
        for rows in (DECODES[:2] if quick else DECODES)
    ]


def _config(options: argparse.Namespace) -> Config:
    most = max(PREFILLS[-1], max(DECODES) * (options.context + BLOCK_SIZE))
    return Config(
        model=ModelConfig(model=str(options.model), dtype=options.dtype, device="cpu"),
        cache=CacheConfig(block_size=BLOCK_SIZE, num_gpu_blocks_override=most // BLOCK_SIZE + 2),
        scheduler=SchedulerConfig(max_num_seqs=max(DECODES)),
    )


def study(options: argparse.Namespace) -> dict[str, Any]:
    """Measure everything."""
    with clocked_kernels() as clock:
        runner = Runner.load(_config(options))
    checkpoint = resolve_checkpoint(str(options.model), revision=None, load_format="auto")
    spec = load_spec(checkpoint)
    memory = runner.info.memory_bytes
    kv_token_bytes = memory["kv_cache"] / runner.info.num_blocks / BLOCK_SIZE
    # a quantized format is multiplied in float32
    stored = getattr(torch, runner.info.dtype, torch.float32)
    before = measured_rates(stored)
    steps = Steps(runner, BLOCK_SIZE)
    wanted = cases(options.context, quick=options.quick)
    measured = [(case, *measure(steps.prepare(case), clock, options.repeats)) for case in wanted]
    after = measured_rates(stored)
    rates = Rates(
        bytes_per_second=max(before.bytes_per_second, after.bytes_per_second),
        flops=max(before.flops, after.flops),
    )
    rows = []
    for case, parts, total in measured:
        least = floors(case, spec, memory["weights"], kv_token_bytes, rates)
        rows.append(
            {"case": case.name, "seconds": parts, "floor_seconds": least, "total_seconds": total}
        )
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": report.machine(),
        "model": options.model.name,
        "dtype": runner.info.dtype,
        "threads": torch.get_num_threads(),
        "decode_context_tokens": options.context,
        "repeats": options.repeats,
        "read_gb_per_second": rates.bytes_per_second / 1e9,
        "gemm_gflops": rates.flops / 1e9,
        "weight_bytes": memory["weights"],
        "kv_bytes_per_token": kv_token_bytes,
        "rows": rows,
    }


def markdown(document: dict[str, Any]) -> str:
    """The table."""
    machine = document["machine"]
    names = (*PARTS, OTHER, PYTHON)
    lines = [
        "# Where a step's time goes, against the hardware's floor",
        "",
        f"- Machine: {machine['cpu']}, {machine['cores']} cores, {document['threads']} threads",
        f"- Model: {document['model']}, {document['dtype']}, {document['weight_bytes'] / 1e6:.0f} "
        f"MB of weights, {document['kv_bytes_per_token'] / 1e3:.1f} KB of keys and values a token",
        f"- Best rates in this run: {document['read_gb_per_second']:.1f} GB/s read, "
        f"{document['gemm_gflops']:.0f} GFLOP/s of matrix products",
        f"- Run: `{document['command']}` at {document['time']}",
        "",
        "Milliseconds, medians, and the floor in brackets. A prefill is one step of the whole",
        f"prompt; decodes stand at context {document['decode_context_tokens']}.",
        "",
        "| step | " + " | ".join(names) + " | whole | whole / floor |",
        "|---" * (len(names) + 3) + "|",
    ]
    for row in document["rows"]:
        cells = [
            f"{row['seconds'][name] * 1e3:.2f} ({row['floor_seconds'][name] * 1e3:.2f})"
            for name in names
        ]
        floor = sum(row["floor_seconds"].values())
        whole = f"{row['total_seconds'] * 1e3:.2f} ({floor * 1e3:.2f})"
        lines.append(
            f"| {row['case']} | {' | '.join(cells)} | {whole} | "
            f"{row['total_seconds'] / floor:.2f} |"
        )
    return "\n".join(lines) + "\n"


def _bound_spinning() -> None:
    """Begin anew with the server's setting of OpenMP, which is read when torch is loaded."""
    before = dict(os.environ)
    bound_spinning(os.environ)
    if os.environ != before:
        os.execv(sys.executable, sys.orig_argv)


def main() -> None:
    """The command line."""
    _bound_spinning()
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    add = parser.add_argument
    add("--model", type=Path, help="GGUF file or directory; default: SmolLM2's package")
    add("--dtype", default="auto", help="as of atom_lite.serve")
    add("--context", type=int, default=384, metavar="TOKENS", help="of the decodes")
    add("--repeats", type=int, default=9, help="of each step")
    add("--quick", action="store_true", help="two small cases and one prefill, three repeats")
    add("--output", type=Path, default=Path("benchmarks/results/roofline"))
    options = parser.parse_args()
    try:
        if options.quick:
            options.repeats = 3
        if options.repeats < 1 or options.context < 1:
            raise LoadError("--repeats and --context must be at least 1")
        options.model = (options.model or default_gguf()).resolve()
        document = study(options) | {"command": report.command_line(sys.argv)}
    except LoadError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    page = markdown(document)
    report.write_pages(options.output, document, page)
    print(page)


if __name__ == "__main__":
    main()
