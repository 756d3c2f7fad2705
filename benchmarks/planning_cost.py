"""What it costs to plan a prompt's chunks: `python -m benchmarks.planning_cost`.

Prompts of 1K to 128K tokens over 2, 4 and 8 stages, equal ones and with a last stage that is 30 %
heavier, for two kinds of machine: ATOM's published coefficients (an accelerator) and half of
SmolLM2-135M on one core of a CPU. The bounds are 10 ms for equal stages, 50 ms for uneven ones, and
one hundredth of the time to first token that the plan predicts. Writes OUTPUT.json and OUTPUT.md.

Times are the thread's own CPU time, because machines are shared; a search does nothing but compute.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from atom_lite.chunking.cuts import Span
from atom_lite.chunking.latency_model import LatencyModel
from atom_lite.chunking.plan_search import Pipeline, plan
from atom_lite.chunking.planner import plan_limits
from benchmarks import report

PROMPTS_TOKENS = tuple(1024 * 2**power for power in range(8))
STAGES = (2, 4, 8)
HEAVY_LAST_STAGE = 1.3
BOUND_SECONDS = {"equal": 0.010, "uneven": 0.050}
BOUND_SHARE = 0.01
COLUMNS = (
    *("machine", "prompt", "stages", "kind", "chunks"),
    *("median ms", "p99 ms", "predicted TTFT s", "share", "within bounds"),
)


@dataclass(frozen=True, slots=True)
class Machine:
    """A stage's model and the largest chunk that a step may hold."""

    name: str
    model: LatencyModel
    most_tokens: int


MACHINES = (
    Machine(
        "accelerator",
        LatencyModel.from_milliseconds(a=3.25e-7, b=6.03e-3, c=26.1, gamma=5.39e-4),
        16384,
    ),
    Machine("cpu", LatencyModel.from_milliseconds(a=5e-5, b=0.4, c=6.0, gamma=4e-3), 512),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """How long the searches of one case took."""

    machine: str
    prompt_tokens: int
    num_stages: int
    stages: str
    median_seconds: float
    p99_seconds: float
    num_chunks: int
    predicted_ttft_seconds: float

    @property
    def share(self) -> float:
        """Of the predicted time to first token."""
        return self.median_seconds / self.predicted_ttft_seconds

    @property
    def is_within_bounds(self) -> bool:
        """Both of them, judged by the median."""
        return self.median_seconds <= BOUND_SECONDS[self.stages] and self.share <= BOUND_SHARE


def measure(
    machine: Machine, prompt_tokens: int, num_stages: int, stages: str, repeats: int
) -> Cost:
    """Search the same plan again and again."""
    last = HEAVY_LAST_STAGE if stages == "uneven" else 1.0
    models = (machine.model,) * (num_stages - 1) + (slowed(machine.model, last),)
    pipeline = Pipeline(models=models, limits=plan_limits(machine.most_tokens))
    span = Span(0, prompt_tokens)
    planned = plan(pipeline, span)
    seconds = []
    for _ in range(repeats):
        began = time.thread_time()
        plan(pipeline, span)
        seconds.append(time.thread_time() - began)
    seconds.sort()
    return Cost(
        machine=machine.name,
        prompt_tokens=prompt_tokens,
        num_stages=num_stages,
        stages=stages,
        median_seconds=statistics.median(seconds),
        p99_seconds=seconds[min(int(0.99 * repeats), repeats - 1)],
        num_chunks=len(planned.sizes),
        predicted_ttft_seconds=planned.predicted_seconds,
    )


def slowed(model: LatencyModel, factor: float) -> LatencyModel:
    """The same stage with more layers."""
    return LatencyModel(
        constant_seconds=model.constant_seconds * factor,
        prefix_seconds_per_token=model.prefix_seconds_per_token * factor,
        linear_seconds_per_token=model.linear_seconds_per_token * factor,
        attention_seconds_per_area=model.attention_seconds_per_area * factor,
    )


def markdown(document: dict[str, object], costs: list[Cost]) -> str:
    """The table that goes beside the JSON."""
    lines = [
        "# What planning a prompt's chunks costs",
        "",
        f"- Machine: {document['cpu']}, one core, thread CPU time",
        f"- Run: `python -m benchmarks.planning_cost --repeats {document['repeats']}`",
        "- Bounds: 10 ms for equal stages, 50 ms for uneven ones, 1 % of the predicted TTFT",
        "",
        f"| {' | '.join(COLUMNS)} |",
        "|---|---:|---:|---|---:|---:|---:|---:|---:|---|",
    ]
    lines += [
        f"| {cost.machine} | {cost.prompt_tokens} | {cost.num_stages} | {cost.stages} "
        f"| {cost.num_chunks} | {1e3 * cost.median_seconds:.2f} | {1e3 * cost.p99_seconds:.2f} "
        f"| {cost.predicted_ttft_seconds:.3f} | {cost.share:.2%} "
        f"| {'yes' if cost.is_within_bounds else 'no'} |"
        for cost in costs
    ]
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    """Measure all cases.

    Returns:
        0 where all medians are within their bounds, else 1.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=100, help="searches of each case")
    parser.add_argument("--output", type=Path, help="without suffix; default: only print")
    options = parser.parse_args(arguments)
    costs = []
    cases = itertools.product(MACHINES, STAGES, BOUND_SECONDS, PROMPTS_TOKENS)
    for machine, num_stages, stages, tokens in cases:
        costs.append(measure(machine, tokens, num_stages, stages, options.repeats))
    document = {"cpu": report.machine()["cpu"], "repeats": options.repeats}
    text = markdown(document, costs)
    sys.stdout.write(text)
    if options.output is not None:
        whole = document | {"costs": [asdict(cost) for cost in costs]}
        report.write_pages(options.output, whole, text)
    return 0 if all(cost.is_within_bounds for cost in costs) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
