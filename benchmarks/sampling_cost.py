"""What sampling options, log probabilities and structured output cost in tokens per second.

    python -m benchmarks.sampling_cost --output benchmarks/results/sampling-cost

Starts the server and keeps 32 streams at once, over HTTP: plain sampling against each arm of
`sampling_arms`, in pairs run one right after the other and in turn first, because the speed of a
shared machine drifts. All waves have the same prompts and lengths; the prompts are in the prefix
cache, so that nothing but decode steps is compared. Writes OUTPUT.json and OUTPUT.md with medians
of the paired ratios. Exit code 0: every goal is met; 1: one is not; 2: it could not be measured.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import secrets
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop
from tqdm import tqdm

from benchmarks import report
from benchmarks.paired import Ratio, describe, paired_ratio
from benchmarks.peers import servers
from benchmarks.peers.checkpoints import default_gguf
from benchmarks.peers.process import exit_on_sigterm, running
from benchmarks.sampling_arms import ARMS, PLAIN, Arm, arms_named
from benchmarks.stream_client import LoadError, StreamClient
from benchmarks.target import PATHS, Target, connect

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ENDPOINT = "chat"
PROMPT_TOKENS = 64
WARM_UP_TOKENS = 4
WAVE_SECONDS = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """The command line's flags."""

    output: Path
    base_url: str | None
    dtype: str
    streams: int
    tokens: int
    pairs: int
    seed: int
    arms: tuple[Arm, ...]
    server_args: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rates:
    """Output tokens per second of one arm and of plain sampling, wave by wave in pairs."""

    arm: Arm
    plain: list[float] = field(default_factory=list)
    ours: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> Ratio:
        """The arm's rate over that of plain sampling."""
        return paired_ratio(self.ours, self.plain)

    @property
    def meets_goal(self) -> bool:
        """Whether the median ratio is at least the arm's goal."""
        return self.ratio.median >= self.arm.goal


class Waves:
    """Sends waves of streams to one server.

    Args:
        target: the server.
        prompts: one for each stream.
        seed: of the first request; each one gets its own.
    """

    def __init__(self, target: Target, prompts: Sequence[str], seed: int) -> None:
        self._target = target
        self._prompts = prompts
        self._next_seed = seed

    async def rate(self, arm: Arm, num_tokens: int) -> float:
        """One wave: all streams at once; its output tokens per second.

        Raises:
            LoadError: a stream failed or has another length.
        """
        deadline = time.perf_counter() + WAVE_SECONDS
        bodies = [self._body(arm, prompt, num_tokens) for prompt in self._prompts]
        path = PATHS[self._target.endpoint]
        started = time.perf_counter()
        records = await asyncio.gather(
            *(self._target.client.stream(path, body, deadline) for body in bodies)
        )
        seconds = time.perf_counter() - started
        for record in records:
            if record.error is not None:
                raise LoadError(f"{arm.name}: {record.error}")
            if record.output_tokens != num_tokens:
                raise LoadError(
                    f"{arm.name}: a stream brought {record.output_tokens} tokens "
                    f"({record.finish_reason}) where {num_tokens} were asked for"
                )
        return len(records) * num_tokens / seconds

    def _body(self, arm: Arm, prompt: str, num_tokens: int) -> dict[str, Any]:
        self._next_seed += 1
        return self._target.body(prompt, num_tokens) | arm.body(self._next_seed, num_tokens)


async def measure(study: Study, base_url: str, *, quiet: bool = False) -> list[Rates]:
    """Warm up, then run all pairs of all arms.

    Raises:
        LoadError: the server cannot be measured; `main` catches it.
    """
    target = await connect(StreamClient(base_url), None, ENDPOINT)
    maker = target.prompt_maker(study.seed)
    prompts = [await maker.make(f"stream/{i}", PROMPT_TOKENS) for i in range(study.streams)]
    waves = Waves(target, prompts, study.seed)
    for arm in (PLAIN, *study.arms):  # fills caches, compiles grammars
        await waves.rate(arm, WARM_UP_TOKENS)
    rates = [Rates(arm) for arm in study.arms]
    hidden = True if quiet else None  # None: hidden unless stderr is a terminal
    with tqdm(total=study.pairs * len(rates), unit="pair", disable=hidden) as bar:
        for turn in range(study.pairs):
            for row in rates:
                await _run_pair(waves, row, study.tokens, plain_first=turn % 2 == 0)
                bar.update(1)
    return rates


async def _run_pair(waves: Waves, rates: Rates, num_tokens: int, *, plain_first: bool) -> None:
    for is_plain in (plain_first, not plain_first):
        arm, kept = (PLAIN, rates.plain) if is_plain else (rates.arm, rates.ours)
        kept.append(await waves.rate(arm, num_tokens))


@contextlib.contextmanager
def served(study: Study) -> Iterator[tuple[str, str]]:
    """The address of the server to measure and what to call it; started where none is given."""
    if study.base_url is not None:
        yield study.base_url, study.base_url
        return
    launch = servers.atom_lite(default_gguf(), study.dtype, study.server_args)
    with tempfile.TemporaryDirectory() as logs, running(launch, Path(logs) / "server.log"):
        words = [Path(word).name if word.startswith("/") else word for word in launch.command]
        yield launch.base_url, report.command_line(words)


def document(
    study: Study, rates: Sequence[Rates], server: str, argv: Sequence[str]
) -> dict[str, Any]:
    """The study as JSON."""
    return {
        "command": report.command_line(argv),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": report.machine(),
        "server": server,
        "streams": study.streams,
        "prompt_tokens": PROMPT_TOKENS,
        "output_tokens": study.tokens,
        "seed": study.seed,
        "arms": [
            {
                "name": row.arm.name,
                "plain_tokens_per_second": [round(rate, 2) for rate in row.plain],
                "tokens_per_second": [round(rate, 2) for rate in row.ours],
                "ratio": row.ratio._asdict(),
                "goal": row.arm.goal,
                "meets_goal": row.meets_goal,
            }
            for row in rates
        ],
    }


def markdown(document: dict[str, Any], rates: Sequence[Rates]) -> str:
    """The study as a page to read."""
    machine = document["machine"]
    lines = [
        "# What sampling options, log probabilities and structured output cost",
        "",
        f"- Machine: {machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB",
        f"- Software: Python {machine['python']}, {machine['versions']}",
        f"- Load: {document['streams']} streams at once, {document['output_tokens']} output tokens "
        f"each, cached prompts of {document['prompt_tokens']} tokens, seed {document['seed']}",
        f"- Run: `{document['command']}` at {document['time']}",
        f"- Server: `{document['server']}`",
        "",
        "Output tokens per second of all streams together, medians; the ratio is the median of",
        "adjacent pairs with its 95 % interval. `benchmarks/sampling_arms.py` says what each asks.",
        "",
        "| | plain sampling | with it | ratio | goal | met |",
        "|---|---:|---:|---:|---:|---|",
    ]
    lines += [
        f"| {row.arm.name} | {statistics.median(row.plain):.1f} | {statistics.median(row.ours):.1f}"
        f" | {describe(row.ratio)} | {row.arm.goal} | {'yes' if row.meets_goal else 'no'} |"
        for row in rates
    ]
    return "\n".join(lines) + "\n"


def parse_study(argv: Sequence[str]) -> Study:
    """Flags to a study."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("benchmarks/results/sampling-cost"),
        help="path without suffix; .json and .md are written",
    )
    parser.add_argument("--base-url", help="a server that runs already; default: start one")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--streams", type=int, default=32, help="at once")
    parser.add_argument("--tokens", type=int, default=96, help="output tokens of each stream")
    parser.add_argument("--pairs", type=int, default=9, help="of each arm")
    parser.add_argument("--quick", action="store_true", help="one pair of 16 tokens")
    parser.add_argument("--seed", type=int, help="of prompts and draws; default: a fresh one")
    parser.add_argument(
        "--arms", nargs="+", default=[], choices=[arm.name for arm in ARMS], help="default: all"
    )
    parser.add_argument(
        "server_args", nargs="*", help="after --: further flags for atom_lite.serve"
    )
    options = vars(parser.parse_args(argv))
    if options.pop("quick"):
        options |= {"pairs": 1, "tokens": 16}
    for name in ("streams", "tokens", "pairs"):
        if options[name] < 1:
            raise LoadError(f"--{name} must be at least 1, got {options[name]}")
    options["seed"] = secrets.randbits(31) if options["seed"] is None else options["seed"]
    options["arms"] = arms_named(options["arms"])
    options["server_args"] = tuple(options["server_args"])
    return Study(**options)


def main() -> None:
    """The command line."""
    exit_on_sigterm()
    try:
        study = parse_study(sys.argv[1:])
        with (
            served(study) as (base_url, server),
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            rates = runner.run(measure(study, base_url))
    except LoadError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    result = document(study, rates, server, sys.argv)
    page = markdown(result, rates)
    report.write_pages(study.output, result, page)
    print(page)
    sys.exit(0 if all(row.meets_goal for row in rates) else 1)


if __name__ == "__main__":
    main()
