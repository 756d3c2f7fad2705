"""Real PP2 in interleaved pairs: makespan against the best fixed chunk, prompt by prompt.

    warm     makespan on prompts of every length, so that it has calibrated itself
    pick     every fixed arm once at each length, the best two once more: the best is chosen here
    judge    rounds of (makespan, best fixed), who goes first alternates; now and then the others

What is judged on was not picked with. Every prompt is new, so no cache helps. Each run is recorded
with its chunks, so a document that was cut short is taken up where it ended.
"""

from __future__ import annotations

import random
import statistics
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from benchmarks.chunk_arms import distinct_fixed_arms, is_fixed
from benchmarks.paired import Ratio, fastest, paired_ratio
from benchmarks.pipeline_arms import LEARNER, TimedChunk
from benchmarks.stream_client import LoadError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from benchmarks.pipeline_arms import PairedPipeline

OTHERS_EVERY_ROUNDS = 3
PICK_AGAIN = 2
MOST_WARM_ROUNDS = 12
REPORTED_FIXED = "fixed-2048"  # its ratio at the longest prompt is always reported


class PairRun(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt.

    Attributes:
        phase: warm, pick or judge.
        round: within the phase.
        tokens: of the prompt.
        arm: how it was cut.
        seconds: to its first output token.
        chunks: as the stages timed them.
    """

    phase: str
    round: int
    tokens: int
    arm: str
    seconds: float
    chunks: list[TimedChunk]


class PairSettings(NamedTuple):
    """What is run.

    Attributes:
        lengths: prompt tokens.
        arms: names.
        rounds: pairs at each length.
        seconds: time after which no further round is started.
        seed: of the prompts.
    """

    lengths: tuple[int, ...]
    arms: tuple[str, ...]
    rounds: int
    seconds: float
    seed: int


class Pairs:
    """The runs of one document, old ones included.

    Args:
        settings: of the runs.
        pipeline: real stages; None to read old runs only.
        runs: of an earlier process.
        save: called after each round.
    """

    def __init__(
        self,
        settings: PairSettings,
        pipeline: PairedPipeline | None,
        runs: Iterable[PairRun] = (),
        save: Callable[[], None] = lambda: None,
    ) -> None:
        self.settings = settings
        self.runs = list(runs)
        self._pipeline = pipeline
        self._save = save
        self._deadline = time.monotonic() + settings.seconds

    def run(self) -> None:
        """Everything that is still to do."""
        self.warm()
        self._pick()
        self.judge()

    def judge(self) -> None:
        """The rounds of pairs."""
        for index in range(self.settings.rounds):
            if time.monotonic() > self._deadline:
                return
            for tokens in self.settings.lengths:
                for arm in self._judged_arms(index, tokens):
                    self._once("judge", index, tokens, arm)
            self._save()

    def warm(self) -> None:
        """Until makespan has its model; every new process learns anew."""
        assert self._pipeline is not None
        for index in range(MOST_WARM_ROUNDS):
            for tokens in self.settings.lengths:
                self._record("warm", index, tokens, LEARNER)
            if self._pipeline.controller.models:
                return
        reason = self._pipeline.controller.status().reason
        raise LoadError(
            f"makespan has not calibrated itself in {MOST_WARM_ROUNDS} rounds: {reason}"
        )

    def distinct_fixed(self, tokens: int) -> list[str]:
        """The fixed arms that differ at this length."""
        return list(distinct_fixed_arms(self.settings.arms, tokens))

    def best_fixed(self, tokens: int) -> str:
        """The fixed arm with the best median of the picking runs."""
        return fastest({arm: self.times("pick", tokens, arm) for arm in self._picked(tokens)})

    def times(self, phase: str, tokens: int, arm: str) -> list[float]:
        """Seconds of an arm, in the order of the rounds."""
        return [
            run.seconds
            for run in self.runs
            if (run.phase, run.tokens, run.arm) == (phase, tokens, arm)
        ]

    def ratio(self, tokens: int, arm: str) -> Ratio | None:
        """Makespan's time over that of an arm that ran in the same rounds; None without pairs."""
        by_round = [
            {r.arm: r.seconds for r in self._judging(tokens) if r.round == index}
            for index in range(self.settings.rounds)
        ]
        pairs = [times for times in by_round if arm in times and LEARNER in times]
        if not pairs:
            return None
        return paired_ratio([times[LEARNER] for times in pairs], [times[arm] for times in pairs])

    def median(self, tokens: int, arm: str) -> float | None:
        """Median time of an arm: of the judging runs, else of the picking ones."""
        times = self.times("judge", tokens, arm) or self.times("pick", tokens, arm)
        return statistics.median(times) if times else None

    def _judging(self, tokens: int) -> list[PairRun]:
        return [run for run in self.runs if run.phase == "judge" and run.tokens == tokens]

    def _picked(self, tokens: int) -> list[str]:
        return [arm for arm in self.distinct_fixed(tokens) if self.times("pick", tokens, arm)]

    def _pick(self) -> None:
        for tokens in self.settings.lengths:
            arms = self.distinct_fixed(tokens)
            for arm in arms:
                self._once("pick", 0, tokens, arm)
            ranked = sorted(arms, key=lambda arm: self.times("pick", tokens, arm)[0])
            for arm in ranked[:PICK_AGAIN]:
                self._once("pick", 1, tokens, arm)
        self._save()

    def _judged_arms(self, index: int, tokens: int) -> list[str]:
        pair = [LEARNER, self.best_fixed(tokens)]
        if index % 2:
            pair.reverse()
        if index % OTHERS_EVERY_ROUNDS:
            return pair
        others = [arm for arm in self.settings.arms if not is_fixed(arm) and arm != LEARNER]
        if tokens == max(self.settings.lengths) and REPORTED_FIXED in self.distinct_fixed(tokens):
            others.append(REPORTED_FIXED)
        return list(dict.fromkeys([*pair, *others]))

    def _once(self, phase: str, index: int, tokens: int, arm: str) -> None:
        done = (phase, index, tokens, arm)
        if all((r.phase, r.round, r.tokens, r.arm) != done for r in self.runs):
            self._record(phase, index, tokens, arm)

    def _record(self, phase: str, index: int, tokens: int, arm: str) -> None:
        assert self._pipeline is not None
        prompt = random_prompt(
            f"{self.settings.seed}/{phase}/{index}/{tokens}/{arm}",
            tokens,
            self._pipeline.engine.ready.vocab_size,
        )
        taken = self._pipeline.time_to_first_token(arm, prompt)
        self.runs.append(
            PairRun(
                phase=phase,
                round=index,
                tokens=tokens,
                arm=arm,
                seconds=taken.seconds,
                chunks=taken.chunks,
            )
        )


def random_prompt(name: str, tokens: int, vocab_size: int) -> list[int]:
    """Token ids that no other prompt shares."""
    source = random.Random(name)
    return [source.randrange(vocab_size) for _ in range(tokens)]


def as_json(pairs: Pairs) -> dict[str, Any]:
    """All runs, and what they say at each length."""
    return {
        "runs": msgspec.to_builtins(pairs.runs),
        "results": [_result(pairs, tokens) for tokens in pairs.settings.lengths],
    }


def _result(pairs: Pairs, tokens: int) -> dict[str, Any]:
    arms = dict.fromkeys(run.arm for run in pairs.runs if run.tokens == tokens)
    has_picked = any(run.phase == "pick" and run.tokens == tokens for run in pairs.runs)
    best = pairs.best_fixed(tokens) if has_picked else None
    ratios = {arm: ratio for arm in arms if (ratio := pairs.ratio(tokens, arm)) is not None}
    return {
        "tokens": tokens,
        "best_fixed": best,
        "median_seconds": {arm: pairs.median(tokens, arm) for arm in arms},
        "makespan_over": {arm: r._asdict() for arm, r in ratios.items() if arm != LEARNER},
    }
