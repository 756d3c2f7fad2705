"""Chunk sizes under load, over the real two-stage pipeline: throughput, and gaps of token streams.

    throughput     4 and 16 long prompts at once: prompt tokens per second, makespan against the
                   fixed chunk that is best at that concurrency (picked on runs of its own: every
                   arm once, the best two once more)
    interference   4 token streams while the longest prompt is prefilled: the 99th percentile of
                   their gaps, makespan against the fixed chunk whose TTFT is nearest to makespan's,
                   and of the same streams right before it (control)

Runs on the benchmark's threads, which do no torch operations.
"""

from __future__ import annotations

import statistics
import threading
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from atom_lite.messages import SamplingParams, TokensGenerated
from benchmarks.chunk_arms import distinct_fixed_arms
from benchmarks.chunking_pairs import PICK_AGAIN, random_prompt
from benchmarks.figures import percentile
from benchmarks.paired import fastest, paired_ratio
from benchmarks.pipeline_arms import LEARNER
from benchmarks.stream_client import LoadError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from atom_lite.engine.in_process import Engine
    from benchmarks.pipeline_arms import PairedPipeline

# (prompts at once, tokens of each)
LEVELS = ((4, 2048), (16, 1024))
NUM_STREAMS = 4
STREAM_PROMPT_TOKENS = 64
STREAM_OUTPUT_TOKENS = 4096
CONTROL_SECONDS = 8.0
STREAM_START_SECONDS = 60.0
GAP_PERCENTILE = 99.0


class LoadRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of one arm.

    Attributes:
        kind: `pick`, `throughput` or `interference`.
        round: within the kind.
        level: prompts at once, or streams.
        arm: how prompts were cut.
        seconds: until all prompts had their first token.
        tokens: of all prompts.
        gaps_p99: of the streams during the prefill; None without streams.
        control_p99: of the streams before it.
    """

    kind: str
    round: int
    level: int
    arm: str
    seconds: float
    tokens: int
    gaps_p99: float | None = None
    control_p99: float | None = None


class LoadSettings(NamedTuple):
    """What is run.

    Attributes:
        arms: names; the fixed ones among them compete with makespan.
        longest_tokens: the prompt beside the streams.
        equal_arm: the fixed arm whose TTFT is like makespan's.
        rounds: of each pair.
        seconds: time after which no further round is started.
        seed: of the prompts.
        levels: prompts at once, and tokens of each.
        control_seconds: of streams alone, before each long prompt.
    """

    arms: tuple[str, ...]
    longest_tokens: int
    equal_arm: str
    rounds: int
    seconds: float
    seed: int
    levels: tuple[tuple[int, int], ...] = LEVELS
    control_seconds: float = CONTROL_SECONDS


class LoadRuns:
    """The runs of one document, old ones included; see `Pairs`."""

    def __init__(
        self,
        settings: LoadSettings,
        pipeline: PairedPipeline | None,
        runs: Iterable[LoadRun] = (),
        save: Callable[[], None] = lambda: None,
    ) -> None:
        self.settings = settings
        self.runs = list(runs)
        self._pipeline = pipeline
        self._save = save
        self._deadline = time.monotonic() + settings.seconds

    def run(self) -> None:
        """Everything that is still to do; makespan must have its model."""
        for level, tokens in self.settings.levels:
            self._pick(level, tokens)
            self._save()
        for index in range(self.settings.rounds):
            if time.monotonic() > self._deadline:
                return
            for level, tokens in self.settings.levels:
                for arm in _in_turn(index, LEARNER, self.best_fixed(level)):
                    self._once("throughput", index, (level, tokens), arm)
            for arm in _in_turn(index, LEARNER, self.settings.equal_arm):
                self._once("interference", index, (NUM_STREAMS, self.settings.longest_tokens), arm)
            self._save()

    def best_fixed(self, level: int) -> str:
        """The fixed arm with the best median of the picking runs at this concurrency."""
        arms = {r.arm for r in self.runs if (r.kind, r.level) == ("pick", level)}
        return fastest({arm: self._picking_seconds(level, arm) for arm in sorted(arms)})

    def of(self, kind: str, level: int, arm: str) -> list[LoadRun]:
        """The runs of one arm, in the order of the rounds."""
        return [r for r in self.runs if (r.kind, r.level, r.arm) == (kind, level, arm)]

    def _pick(self, level: int, tokens: int) -> None:
        arms = list(distinct_fixed_arms(self.settings.arms, tokens))
        for arm in arms:
            self._once("pick", 0, (level, tokens), arm)
        ranked = sorted(arms, key=lambda arm: self._picking_seconds(level, arm)[0])
        for arm in ranked[:PICK_AGAIN]:
            self._once("pick", 1, (level, tokens), arm)

    def _picking_seconds(self, level: int, arm: str) -> list[float]:
        return [run.seconds for run in self.of("pick", level, arm)]

    def _once(self, kind: str, index: int, shape: tuple[int, int], arm: str) -> None:
        level, tokens = shape
        done = (kind, index, level, arm)
        if any((r.kind, r.round, r.level, r.arm) == done for r in self.runs):
            return
        assert self._pipeline is not None
        engine = self._pipeline.engine
        self._pipeline.controller.use(arm)
        name = f"{self.settings.seed}/{kind}/{index}/{level}/{arm}"
        vocabulary = engine.ready.vocab_size
        if kind == "interference":
            seconds, gaps, control = _interference(
                engine, name, tokens, self.settings.control_seconds
            )
            total = tokens
        else:
            prompts = [random_prompt(f"{name}/{i}", tokens, vocabulary) for i in range(level)]
            seconds, gaps, control = _prefill_all(engine, prompts), None, None
            total = level * tokens
        self.runs.append(
            LoadRun(
                kind=kind,
                round=index,
                level=level,
                arm=arm,
                seconds=seconds,
                tokens=total,
                gaps_p99=gaps,
                control_p99=control,
            )
        )


def as_json(load: LoadRuns) -> dict[str, Any]:
    """All runs; throughput ratios (above 1 makespan is faster) and gap ratios (below 1 it is)."""
    results: list[dict[str, Any]] = []
    for level, tokens in load.settings.levels:
        if not any(r.kind == "throughput" and r.level == level for r in load.runs):
            continue
        best = load.best_fixed(level)
        ours, theirs = (load.of("throughput", level, arm) for arm in (LEARNER, best))
        results.append(
            {
                "prompts_at_once": level,
                "tokens": tokens,
                "best_fixed": best,
                "makespan_tokens_per_second": _rate(ours),
                "best_fixed_tokens_per_second": _rate(theirs),
                "throughput_ratio": paired_ratio(
                    [r.seconds for r in theirs], [r.seconds for r in ours]
                )._asdict(),
            }
        )
    return {
        "runs": msgspec.to_builtins(load.runs),
        "throughput": results,
        "interference": _interference_result(load),
    }


def _interference_result(load: LoadRuns) -> dict[str, Any] | None:
    arms = {arm: load.of("interference", NUM_STREAMS, arm) for arm in _arms_beside_streams(load)}
    if not all(arms.values()):
        return None
    gaps = {arm: [r.gaps_p99 or 0.0 for r in runs] for arm, runs in arms.items()}
    controls = [r.control_p99 or 0.0 for runs in arms.values() for r in runs]
    equal = load.settings.equal_arm
    return {
        "equal_arm": equal,
        "gap_p99_seconds": {arm: statistics.median(values) for arm, values in gaps.items()},
        "prefill_seconds": {
            arm: statistics.median(r.seconds for r in runs) for arm, runs in arms.items()
        },
        "control_p99_seconds": statistics.median(controls),
        "gap_ratio": paired_ratio(gaps[LEARNER], gaps[equal])._asdict(),
    }


def _arms_beside_streams(load: LoadRuns) -> tuple[str, str]:
    return LEARNER, load.settings.equal_arm


def _rate(runs: Sequence[LoadRun]) -> float:
    return statistics.median(run.tokens / run.seconds for run in runs)


def _in_turn(index: int, first: str, second: str) -> tuple[str, str]:
    return (second, first) if index % 2 else (first, second)


def _one_token() -> SamplingParams:
    return SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)


def _prefill_all(engine: Engine, prompts: Sequence[list[int]]) -> float:
    began = time.perf_counter()
    ids = [engine.submit(prompt, _one_token()) for prompt in prompts]
    for sequence_id in ids:
        engine.collect(sequence_id)
    return time.perf_counter() - began


class _Stream:
    """One token stream and the times at which its tokens came."""

    def __init__(self, engine: Engine, prompt: list[int]) -> None:
        self._engine = engine
        self.arrivals: list[float] = []
        self.started = threading.Event()
        most = min(STREAM_OUTPUT_TOKENS, engine.ready.max_model_len - len(prompt))
        sampling = SamplingParams(max_tokens=most, temperature=0.0, ignore_eos=True)
        self._id = engine.submit(prompt, sampling)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._engine.abort(self._id)
        self._thread.join()

    def gaps(self, since: float, until: float) -> list[float]:
        """Gaps that touch the window, in full."""
        return [b - a for a, b in pairwise(self.arrivals) if b >= since and a <= until]

    def _read(self) -> None:
        for event in self._engine.events(self._id):
            if isinstance(event, TokensGenerated):
                self.arrivals.append(time.perf_counter())
                self.started.set()


def _interference(
    engine: Engine, name: str, tokens: int, control_seconds: float
) -> tuple[float, float, float]:
    """Prefill seconds, and the gaps' percentile during the prefill and before it."""
    vocabulary = engine.ready.vocab_size
    streams = [
        _Stream(engine, random_prompt(f"{name}/stream/{i}", STREAM_PROMPT_TOKENS, vocabulary))
        for i in range(NUM_STREAMS)
    ]
    try:
        if not all(stream.started.wait(STREAM_START_SECONDS) for stream in streams):
            raise LoadError(f"a token stream did not start in {STREAM_START_SECONDS:g} s")
        quiet_since = time.perf_counter()
        time.sleep(control_seconds)
        began = time.perf_counter()
        _prefill_all(engine, [random_prompt(name, tokens, vocabulary)])
        ended = time.perf_counter()
    finally:
        for stream in streams:
            stream.stop()
    during = [gap for stream in streams for gap in stream.gaps(began, ended)]
    control = [gap for stream in streams for gap in stream.gaps(quiet_since, began)]
    p99, control_p99 = percentile(during, GAP_PERCENTILE), percentile(control, GAP_PERCENTILE)
    if p99 is None or control_p99 is None:
        raise LoadError("the token streams brought no tokens beside the prefill")
    return ended - began, p99, control_p99
