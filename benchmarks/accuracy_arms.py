"""One arm of the accuracy benchmark: all items and windows under one way to cut prompts.

Which layer: the real scheduler, planners, calibration and stages, in one process and in lockstep
(`lockstep`, `staged_model`). Chunk sizes reach the model only as (start, number of tokens) of the
rows of a plan, so everything that could turn them into other tokens is here: block tables, prefix
cache hits, attention over a paged prefix, mixed steps, the split into stages. HTTP, text and the
bytes between processes see no chunk sizes, and with them in between two runs would not repeat.
"""

from __future__ import annotations

import dataclasses
import random
import time
from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from atom_lite.chunking.planners.fixed import FixedPlanner
from atom_lite.chunking.profile import Fingerprint
from atom_lite.chunking.report import ChunkReport
from atom_lite.config import ChunkingConfig, Config
from atom_lite.engine.chunking_desk import ChunkingDesk
from atom_lite.engine.chunking_policy import make_controller
from atom_lite.engine.limits import scheduler_limits
from atom_lite.messages import ChunkingStats
from atom_lite.scheduler.scheduler import Scheduler
from benchmarks.chunk_plans import Given, RecordingPlanner, ReplayPlanner
from benchmarks.lockstep import Lockstep, Prompt
from benchmarks.prompts import random_words
from benchmarks.text_nll import NllMeter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atom_lite.chunking.planner import ChunkPlanner
    from atom_lite.scheduler.limits import SchedulerLimits
    from atom_lite.text.tokenizer import Tokenizer
    from benchmarks.staged_model import StagedModel
    from benchmarks.tasks import Item

WARM_UP_WORDS = (600, 1100, 1600)
MOST_WARM_UPS = 12


@dataclass(frozen=True, slots=True)
class Arm:
    """How prompts are cut.

    Attributes:
        name: as shown.
        budget: tokens of a step.
        cut: fixed chunks, sizes from the fitted model, or those that another arm used.
        num_windows: of the text, from its start.
        dropped_tokens: of each chunk's prefix; above 0 it is the planted error.
    """

    name: str
    budget: int
    cut: Literal["fixed", "model", "replay"]
    num_windows: int
    dropped_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmResult:
    """What an arm answered, and how its prompts were cut."""

    arm: Arm
    outputs: list[list[int]]
    right: list[bool]
    score_by_kind: dict[str, float]
    window_nll: list[float]
    nll_tokens: int
    chunks_by_reason: dict[str, int]
    chunk_sizes: dict[int, int]  # size -> how many
    given: list[Given]  # every decision, in order
    chunking: ChunkingStats | None  # what /server_info would show
    seconds: float

    @property
    def score(self) -> float:
        """Share of the items with the right answer."""
        return sum(self.right) / len(self.right)

    @property
    def nll(self) -> float:
        """Mean over the tokens, in nats."""
        return sum(self.window_nll) / self.nll_tokens

    @property
    def model_share(self) -> float:
        """Share of the chunks that the fitted model sized."""
        return self.chunks_by_reason.get("model", 0) / max(1, sum(self.chunks_by_reason.values()))

    def as_json(self) -> dict[str, Any]:
        """All that a later reader needs; outputs as token ids."""
        return {
            **asdict(self.arm),
            "score": self.score,
            "score_by_kind": self.score_by_kind,
            "right": [int(right) for right in self.right],
            "outputs": self.outputs,
            "nll": self.nll,
            "nll_tokens": self.nll_tokens,
            "window_nll": self.window_nll,
            "chunks_by_reason": self.chunks_by_reason,
            "chunk_sizes": self.chunk_sizes,
            "chunking": msgspec.to_builtins(self.chunking),
            "seconds": round(self.seconds, 1),
        }


class Bench:
    """Runs arms over one loaded model.

    Args:
        config: model and cache of all arms.
        model: loaded from it.
        tokenizer: of the model.
        items: to answer.
        windows: of the text, as token ids.
        profile: file that keeps the latency model; None fits anew.
    """

    def __init__(
        self,
        config: Config,
        model: StagedModel,
        tokenizer: Tokenizer,
        items: Sequence[Item],
        windows: Sequence[list[int]],
        profile: str | None = None,
    ) -> None:
        self._config = config
        self._model = model
        self._tokenizer = tokenizer
        self._items = items
        self._windows = windows
        self._profile = profile
        stop = tuple(tokenizer.encode("\n", add_special_tokens=False))
        self._prompts = [
            Prompt(self._encode(item.context + item.question), item.max_tokens, stop)
            for item in items
        ]

    def run(self, arm: Arm, given: Sequence[Given] = ()) -> ArmResult:
        """Run an arm from an empty cache.

        Args:
            arm: what to run.
            given: the decisions to replay, where `arm.cut` is that.
        """
        config = self._arm_config(arm)
        limits = scheduler_limits(config, self._model.runners[0].info)
        self._model.dropper.dropped_tokens = arm.dropped_tokens
        self._model.reset()
        desk, report = None, ChunkReport()
        planner: ChunkPlanner = FixedPlanner()
        if arm.cut == "model":
            desk = self._warmed_up(config, limits)
            planner, report = desk.controller.planner, desk.controller.report
        elif arm.cut == "replay":
            planner = ReplayPlanner(given)
        recorder = RecordingPlanner(planner)
        before = report.total_by_reason.copy()
        meter = NllMeter(self._model.last)
        scheduler = Scheduler(limits, planner=recorder, report=report)
        lockstep = Lockstep(scheduler, self._model, desk, meter.after_step)
        started = time.monotonic()
        outputs = self._answer(lockstep)
        for window in self._windows[: arm.num_windows]:
            meter.watch(lockstep.next_id, window)
            lockstep.run([Prompt(window, 1)])
        scheduler.check_integrity()
        seconds = time.monotonic() - started
        right = self._marks(outputs)
        sizes = Counter(size for one in recorder.given if (size := one.decision.tokens))
        return ArmResult(
            arm=arm,
            outputs=outputs,
            right=right,
            score_by_kind=self._by_kind(right),
            window_nll=list(meter.nll_by_sequence.values()),
            nll_tokens=sum(meter.tokens_by_sequence.values()),
            chunks_by_reason={str(k): n for k, n in (report.total_by_reason - before).items()},
            chunk_sizes=dict(sorted(sizes.items())),
            given=recorder.given,
            chunking=desk.stats(time.monotonic()) if desk is not None else None,
            seconds=seconds,
        )

    def _marks(self, outputs: list[list[int]]) -> list[bool]:
        replies = (self._tokenizer.decode(output) for output in outputs)
        return [item.is_right(reply) for item, reply in zip(self._items, replies, strict=True)]

    def _by_kind(self, right: list[bool]) -> dict[str, float]:
        marks: dict[str, list[bool]] = {}
        for item, mark in zip(self._items, right, strict=True):
            marks.setdefault(item.kind, []).append(mark)
        return {kind: sum(all_) / len(all_) for kind, all_ in marks.items()}

    def _answer(self, lockstep: Lockstep) -> list[list[int]]:
        """All items, as a busy server would meet them: see `waves`."""
        outputs: list[list[int]] = [[] for _ in self._items]
        for wave in waves(self._items):
            answers = lockstep.run([self._prompts[index] for index in wave])
            for index, output in zip(wave, answers, strict=True):
                outputs[index] = output
        return outputs

    def _arm_config(self, arm: Arm) -> Config:
        return dataclasses.replace(
            self._config,
            scheduler=dataclasses.replace(
                self._config.scheduler, max_num_batched_tokens=arm.budget
            ),
            chunking=ChunkingConfig(enable_dynamic_chunking=arm.cut == "model"),
        )

    def _warmed_up(self, config: Config, limits: SchedulerLimits) -> ChunkingDesk:
        """A policy that has calibrated itself on the startup sweep and on prompts of its own.

        Raises:
            RuntimeError: it has no model after `MOST_WARM_UPS` prompts.
        """
        desk = self._desk(config, limits)
        first_step_id = desk.load(self._model)
        self._model.reset()
        controller = desk.controller
        scheduler = Scheduler(
            limits,
            planner=controller.planner,
            report=controller.report,
            first_step_id=first_step_id,
        )
        lockstep = Lockstep(scheduler, self._model, desk)
        rng = random.Random("warm-up")
        for index in range(MOST_WARM_UPS):
            if controller.status().state == "installed":
                self._model.reset()
                return desk
            words = random_words(rng, WARM_UP_WORDS[index % len(WARM_UP_WORDS)])
            lockstep.run([Prompt(self._encode(words), 8)])
        raise RuntimeError(f"no latency model was installed: {controller.status().reason}")

    def _desk(self, config: Config, limits: SchedulerLimits) -> ChunkingDesk:
        info = self._model.runners[0].info
        fingerprint = Fingerprint(
            model=info.architecture,
            dtype=info.dtype,
            device=info.device,
            num_threads=config.model.threads or 0,
            layers_per_stage=info.layers_per_stage,
        )
        return ChunkingDesk(
            make_controller(config, limits),
            fingerprint,
            policy=config.chunking.dynamic_chunking_policy,
            profile_path=self._profile,
            block_size=limits.block_size,
            vocab_size=info.vocab_size,
        )

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)


def waves(items: Sequence[Item]) -> list[list[int]]:
    """Indices of the items that are asked at once, wave after wave.

    Each context comes first with one question, beside its share of the short items: a long prefill
    among decodes and short prompts. Then come its other questions, which find it in the prefix
    cache.
    """
    groups: dict[int, list[int]] = {}
    for index, item in enumerate(items):
        groups.setdefault(item.group, []).append(index)
    short = groups.pop(-1, [])
    shares = max(1, len(groups))
    made = []
    for number, group in enumerate(groups.values()):
        made.append([group[0], *short[number::shares]])
        made.append(group[1:])
    return [wave for wave in made if wave] or [short]
