"""One real pipeline of two stages whose chunk-size policy is changed from prompt to prompt.

Two servers do not fit on two cores at once, and starting one for each prompt costs more than the
prompt: so the engine runs inside the benchmark, its stages in processes of their own and pinned as
in the server, and only the planner is swapped, between prompts. makespan learns from its own
prompts only, as it would in a server of its own; the other arms get its models.
"""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, NamedTuple, Self

import torch

from atom_lite.chunking.planner import ChunkDecision
from atom_lite.chunking.planners.fixed import FixedPlanner
from atom_lite.chunking.report import ChunkReport
from atom_lite.engine.chunking_policy import make_controller
from atom_lite.engine.in_process import Engine
from atom_lite.messages import SamplingParams, TokensGenerated
from atom_lite.parallel.affinity import pin_process, usable_cpus
from benchmarks.chunk_arms import Situation, is_fixed, planner_of, step_tokens_of
from benchmarks.stream_client import LoadError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from atom_lite.chunking.background import Background
    from atom_lite.chunking.calibrator import StepSample
    from atom_lite.chunking.controller import ChunkingController, ChunkingStatus, ModelReport
    from atom_lite.chunking.latency_model import LatencyModel
    from atom_lite.chunking.planner import ChunkPlanner, ChunkRequest, Supply
    from atom_lite.chunking.refusal import Notice
    from atom_lite.chunking.startup import StartupSweep
    from atom_lite.config import Config
    from atom_lite.scheduler.limits import SchedulerLimits

LEARNER = "makespan"
NUM_STAGES = 2


class TimedChunk(NamedTuple):
    """A step of one chunk, as the stages timed it."""

    prefix_tokens: int
    new_tokens: int
    stage_seconds: tuple[float, ...]


class PromptRun(NamedTuple):
    """One prompt that was alone in the pipeline."""

    seconds: float  # from submission to the first output token
    chunks: list[TimedChunk]


class _Switch:
    """The planner in force, behind one that the scheduler keeps.

    The scheduler has one step budget for all arms, so each arm's own is kept here: in a server it
    bounds the step, however many prompts there are, and not each prompt's chunk.

    Args:
        scheduler_tokens: the scheduler's budget.
    """

    def __init__(self, scheduler_tokens: int) -> None:
        self.active: ChunkPlanner = FixedPlanner()
        self.step_tokens = scheduler_tokens
        self._scheduler_tokens = scheduler_tokens

    def begin_step(self, supply: Supply) -> None:
        self.active.begin_step(supply)

    def next_chunk(self, request: ChunkRequest) -> ChunkDecision:
        left = request.budget_tokens - (self._scheduler_tokens - self.step_tokens)
        if left <= 0:
            return ChunkDecision(0, "fixed")  # the step is full
        return self.active.next_chunk(dataclasses.replace(request, budget_tokens=left))

    def forget(self, sequence_id: int) -> None:
        self.active.forget(sequence_id)


class SwitchedController:
    """A ChunkingController whose arm is chosen from outside, while nothing is in flight.

    Args:
        learner: makespan, as the server makes it.
        longest_tokens: the prompt range's end.
        budget_tokens: makespan's largest step.
        scheduler_tokens: the scheduler's, at least as large as any arm's.
    """

    def __init__(
        self,
        learner: ChunkingController,
        *,
        longest_tokens: int,
        budget_tokens: int,
        scheduler_tokens: int,
    ) -> None:
        self.report = ChunkReport()
        self.needs_acknowledgement = False
        self.planner = _Switch(scheduler_tokens)
        self.samples: list[TimedChunk] = []
        self._learner = learner
        self._is_learning = False
        self._longest_tokens = longest_tokens
        self._budget_tokens = budget_tokens

    @property
    def models(self) -> tuple[LatencyModel, ...]:
        """What makespan has learned by now; empty before its first fit."""
        return self._learner.status().models

    def use(self, arm: str) -> None:
        """Cut the prompts that come now as this arm does.

        Raises:
            LoadError: the arm needs a model, and makespan has not learned one yet.
        """
        self.samples = []
        self._is_learning = arm == LEARNER
        if not is_fixed(arm) and not self._is_learning and not self.models:
            raise LoadError(f"{arm} needs a fitted model: run makespan on a few prompts before it")
        situation = Situation(self.models, self._longest_tokens, self._budget_tokens)
        self.planner.step_tokens = step_tokens_of(arm, situation)
        self.planner.active = (
            self._learner.planner if self._is_learning else planner_of(arm, situation)
        )

    def startup(self) -> StartupSweep | None:
        """The learner's."""
        return self._learner.startup()

    def submitted(self, sequence_id: int, prompt_tokens: int, cached_tokens: int) -> None:
        """The learner plans its own prompts ahead, as in the server."""
        if self._is_learning:
            self._learner.submitted(sequence_id, prompt_tokens, cached_tokens)

    def wants_sample(self, *, num_sequences: int, num_prefills: int) -> bool:
        """All prefills, for the record."""
        del num_sequences
        return num_prefills > 0

    def record(self, sample: StepSample) -> list[Notice]:
        """Keep it; the learner sees its own only."""
        if len(sample.chunks) == 1 and sample.decode_rows == 0:
            prefix, new = sample.chunks[0]
            self.samples.append(TimedChunk(prefix, new, sample.stage_seconds))
        return self._learner.record(sample) if self._is_learning else []

    def end_step(self) -> list[Notice]:
        """The learner's."""
        return self._learner.end_step() if self._is_learning else []

    def take_notices(self) -> list[Notice]:
        """The learner's."""
        return self._learner.take_notices()

    def status(self) -> ChunkingStatus:
        """The learner's."""
        return self._learner.status()

    def model_report(self) -> ModelReport | None:
        """The learner's."""
        return self._learner.model_report()


class PairedPipeline:
    """The engine with its switch. Use it as a context manager.

    Args:
        config: of the model; stages, budget and prefix cache are set here.
        longest_tokens: of any prompt.
        budget_tokens: makespan's largest step, the server's default.
    """

    def __init__(self, config: Config, *, longest_tokens: int, budget_tokens: int) -> None:
        self._cpus = usable_cpus()
        self._num_threads = torch.get_num_threads()
        self._longest_tokens = longest_tokens
        self._budget_tokens = budget_tokens
        self.engine = Engine(
            pipeline_config(config, longest_tokens), pin=True, controller_maker=self._controller
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.engine.close()
        # This process was stage 0 on its share; whatever runs next in it may use all cores again.
        pin_process(self._cpus, num_threads=self._num_threads)

    def time_to_first_token(self, arm: str, prompt: Sequence[int]) -> PromptRun:
        """Run one prompt alone."""
        self.controller.use(arm)
        sampling = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
        began = time.perf_counter()
        first = None
        for event in self.engine.generate(list(prompt), sampling):
            if isinstance(event, TokensGenerated) and first is None:
                first = time.perf_counter()
        if first is None:
            raise LoadError(f"{arm}: a prompt of {len(prompt)} tokens ended without a token")
        return PromptRun(first - began, list(self.controller.samples))

    def _controller(
        self, config: Config, limits: SchedulerLimits, background: Background
    ) -> ChunkingController:
        budget = min(self._budget_tokens, limits.prefill_step_tokens)
        as_served = dataclasses.replace(
            limits, decode_step_tokens=budget, prefill_step_tokens=budget
        )
        self.controller = SwitchedController(
            make_controller(config, as_served, background),
            longest_tokens=self._longest_tokens,
            budget_tokens=budget,
            scheduler_tokens=limits.prefill_step_tokens,
        )
        return self.controller


def pipeline_config(config: Config, longest_tokens: int) -> Config:
    """Two stages with the feature on, room for the largest fixed chunk, and no prefix cache."""
    return dataclasses.replace(
        config,
        parallel=dataclasses.replace(config.parallel, pipeline_parallel_size=NUM_STAGES),
        chunking=dataclasses.replace(config.chunking, enable_dynamic_chunking=True),
        scheduler=dataclasses.replace(config.scheduler, max_num_batched_tokens=longest_tokens),
        cache=dataclasses.replace(config.cache, enable_prefix_caching=False),
    )
