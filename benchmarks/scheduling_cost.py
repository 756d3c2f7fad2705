"""What a step costs the scheduler: `python -m benchmarks.scheduling_cost`.

256 sequences run and 1000 wait: what `schedule` takes to plan a step, and `commit` to take its
result. The real scheduler is driven as the head drives it, with results made up in place of a
model. The bound is 0.3 ms for planning, by the median, so that it disappears beside a decode step.

    decodes    all 256 decode, every slot is taken
    prefill    255 decode beside one prompt of many chunks
    no blocks  slots are free and the pool is not: the queue's head is asked for at every step

Times are the thread's own CPU time, because machines are shared; a scheduler does nothing but
compute. Writes OUTPUT.json and OUTPUT.md.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from atom_lite.config_scheduling import BatchingPolicyName
from atom_lite.messages import SampledToken, SamplingParams, StepResult, SubmitSequence
from atom_lite.scheduler.limits import SchedulerLimits
from atom_lite.scheduler.scheduler import Scheduler
from benchmarks import report

if TYPE_CHECKING:
    from atom_lite.messages import StepPlan

BOUND_SECONDS = 0.3e-3
NUM_RUNNING = 256
NUM_WAITING = 1000
PROMPT_TOKENS = 64
LONG_PROMPT_TOKENS = 100_000
MAX_MODEL_LEN = 131_072
BUDGET_TOKENS = 512
BLOCK_SIZE = 16
OUTPUT_TOKENS = 4096
WARM_STEPS = 20
# Those that may run beside a running crowd: request-level admits nobody until all have ended.
POLICIES = tuple(name for name in get_args(BatchingPolicyName) if name != "request-level")
CASES = ("decodes", "prefill", "no blocks")
COLUMNS = ("policy", "case", "plan ms", "p99 ms", "commit ms", "p99 ms", "within the bound")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """How long the steps of one case took, in seconds."""

    policy: str
    case: str
    num_rows: int
    plan_median: float
    plan_p99: float
    commit_median: float
    commit_p99: float

    @property
    def is_within_bound(self) -> bool:
        """By the median."""
        return self.plan_median <= BOUND_SECONDS


class Crowd:
    """A scheduler with the crowd of one case in it.

    Args:
        policy: of batching.
        case: see the module.
        num_steps: that will be measured; nobody ends before.
    """

    def __init__(self, policy: BatchingPolicyName, case: str, num_steps: int) -> None:
        self.now = 0.0
        self._ids = itertools.count()
        num_long = case == "prefill"
        num_decoding = NUM_RUNNING - num_long
        per_sequence = -(-(PROMPT_TOKENS + OUTPUT_TOKENS) // BLOCK_SIZE)
        num_blocks = NUM_RUNNING * per_sequence + num_long * LONG_PROMPT_TOKENS // BLOCK_SIZE
        self.scheduler = Scheduler(
            SchedulerLimits(
                max_num_seqs=NUM_RUNNING + (case == "no blocks") * NUM_WAITING,
                decode_step_tokens=max(BUDGET_TOKENS, NUM_RUNNING + NUM_WAITING),
                prefill_step_tokens=max(BUDGET_TOKENS, NUM_RUNNING + NUM_WAITING),
                max_model_len=MAX_MODEL_LEN,
                block_size=BLOCK_SIZE,
                num_blocks=num_blocks,
                eos_token_ids=frozenset(),
                batching_policy=policy,
                capacity_policy="no-evict",
            )
        )
        assert WARM_STEPS + num_steps < OUTPUT_TOKENS
        for _ in range(num_decoding):
            self._submit(PROMPT_TOKENS)
        while self.scheduler.stats().num_waiting:
            self.step()
        if num_long:
            self._submit(LONG_PROMPT_TOKENS)
        for _ in range(NUM_WAITING):
            self._submit(PROMPT_TOKENS)
        for _ in range(WARM_STEPS):
            self.step()
        assert self.scheduler.stats().num_running == NUM_RUNNING

    def step(self) -> tuple[float, float, int]:
        """One step: seconds to plan it, seconds to take its result, its rows."""
        self.now += 0.01
        began = time.thread_time()
        plan = self.scheduler.schedule(self.now)
        planned = time.thread_time()
        assert plan is not None
        result = _result(plan)
        came = time.thread_time()
        self.scheduler.commit(result, self.now)
        return planned - began, time.thread_time() - came, len(plan.rows)

    def _submit(self, prompt_tokens: int) -> None:
        sequence_id = next(self._ids)
        message = SubmitSequence(
            sequence_id=sequence_id,
            prompt_token_ids=[sequence_id] * prompt_tokens,
            sampling=SamplingParams(max_tokens=OUTPUT_TOKENS, ignore_eos=True),
            arrival_time=self.now,
        )
        refused = self.scheduler.submit(message, self.now)
        assert not refused


def _result(plan: StepPlan) -> StepResult:
    tokens = [SampledToken(row.sequence_id, row.epoch, 7) for row in plan.rows if row.sample]
    return StepResult(step_id=plan.step_id, tokens=tokens)


def measure(policy: BatchingPolicyName, case: str, num_steps: int) -> Cost:
    """Step after step of one case."""
    crowd = Crowd(policy, case, num_steps)
    steps = [crowd.step() for _ in range(num_steps)]
    plans, commits, rows = zip(*steps, strict=True)
    return Cost(
        policy=policy,
        case=case,
        num_rows=max(rows),
        plan_median=statistics.median(plans),
        plan_p99=sorted(plans)[int(0.99 * num_steps)],
        commit_median=statistics.median(commits),
        commit_p99=sorted(commits)[int(0.99 * num_steps)],
    )


def markdown(document: dict[str, object], costs: list[Cost]) -> str:
    """The table that goes beside the JSON."""
    lines = [
        "# What a step costs the scheduler",
        "",
        f"- Machine: {document['cpu']}, one core, thread CPU time",
        f"- Run: `python -m benchmarks.scheduling_cost --steps {document['steps']}`",
        f"- {NUM_RUNNING} sequences run, {NUM_WAITING} wait; median and p99 over the steps",
        f"- Bound: {1e3 * BOUND_SECONDS:.1f} ms to plan a step, by the median",
        "",
        f"| {' | '.join(COLUMNS)} |",
        "|---|---|---:|---:|---:|---:|---|",
    ]
    lines += [
        f"| {cost.policy} | {cost.case} | {1e3 * cost.plan_median:.3f} | {1e3 * cost.plan_p99:.3f} "
        f"| {1e3 * cost.commit_median:.3f} | {1e3 * cost.commit_p99:.3f} "
        f"| {'yes' if cost.is_within_bound else 'no'} |"
        for cost in costs
    ]
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    """Measure all cases.

    Returns:
        0 where all medians are within the bound, else 1.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=400, help="of each case")
    parser.add_argument("--policies", nargs="+", default=POLICIES, choices=POLICIES)
    parser.add_argument("--output", type=Path, help="without suffix; default: only print")
    options = parser.parse_args(arguments)
    cases = itertools.product(options.policies, CASES)
    costs = [measure(policy, case, options.steps) for policy, case in cases]
    document = {"cpu": report.machine()["cpu"], "steps": options.steps}
    text = markdown(document, costs)
    sys.stdout.write(text)
    if options.output is not None:
        whole = document | {"costs": [asdict(cost) for cost in costs]}
        report.write_pages(options.output, whole, text)
    return 0 if all(cost.is_within_bound for cost in costs) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
