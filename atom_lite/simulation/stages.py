"""Pipeline stages that only take time: how long is a latency model's business.

Stages run microbatches in FIFO order and nothing overtakes, so a plan's whole way is known when it
enters: no stage waits for anything but its predecessor's output and its own last microbatch.

    arrives at stage s+1 = leaves stage s + hop        sends overlap with compute
    starts on stage s    = max(arrives, stage is free)
    handed on            = leaves stage 0              which runs in the head's own process
    result at the head   = leaves the last stage + hop

Results carry each stage's seconds, as those of the real pipeline do. Runs in simulations only; the
clock is whatever the caller says.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atom_lite.chunking.latency_model import LatencyModel
from atom_lite.chunking.step_contents import step_sample
from atom_lite.errors import ConfigError
from atom_lite.messages import SampledToken, StepResult, StepTimes
from atom_lite.simulation.chrome_trace import StageInterval
from atom_lite.simulation.kv_audit import AuditedStage, StageAnswer

if TYPE_CHECKING:
    from atom_lite.chunking.calibrator import StepSample
    from atom_lite.chunking.latency_model import Chunk
    from atom_lite.messages import StepPlan
    from atom_lite.scheduler.limits import SchedulerLimits

DRAWN_TOKEN = 7  # every token, where no audit draws them


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSpec:
    """The machine that is simulated.

    Attributes:
        models: one per stage.
        hop_seconds: from stage to stage, and from the last one back to the head.
        noise: standard deviation of a step's time on a stage, as a share of it; log-normal with
            mean 1, so that noise alone makes nothing slower.
        seed: of the noise.

    Raises:
        ConfigError: no stage, or a negative cost.
    """

    models: tuple[LatencyModel, ...]
    hop_seconds: float = 0.0
    noise: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.models:
            raise ConfigError("the simulated pipeline has 0 stages, must have at least 1")
        for name, value in (("hop cost", self.hop_seconds), ("noise", self.noise)):
            if not 0.0 <= value < float("inf"):
                raise ConfigError(f"the {name} is {value}, must be at least 0 and finite")

    @property
    def num_stages(self) -> int:
        """How many there are."""
        return len(self.models)


class SimulatedStages:
    """Takes plans, gives results back in order, and keeps the timeline.

    Args:
        spec: the machine.
        audit: the scheduler's limits, to check every KV read and draw tokens that can be foretold;
            None draws one and the same token.
    """

    def __init__(self, spec: PipelineSpec, *, audit: SchedulerLimits | None = None) -> None:
        self._spec = spec
        self._rng = random.Random(spec.seed)
        self._free_at = [0.0] * spec.num_stages
        self._handing_on: deque[tuple[float, int]] = deque()  # when stage 0 ends a step
        self._results: deque[tuple[float, StepResult]] = deque()
        self._audited: list[AuditedStage] = []
        if audit is not None:
            self._audited = [AuditedStage(audit.num_blocks, audit.block_size) for _ in spec.models]
        self.intervals: list[StageInterval] = []

    @property
    def next_event_seconds(self) -> float | None:
        """When the head next learns something; None where nothing is in flight."""
        coming = [queue[0][0] for queue in (self._handing_on, self._results) if queue]
        return min(coming, default=None)

    def start(self, plan: StepPlan, now: float) -> None:
        """Send a plan in."""
        contents = step_sample(plan)
        hop = self._spec.hop_seconds if self._spec.num_stages > 1 else 0.0
        # A plan without rows only says what to forget: no model call.
        stage_seconds = [0.0] * self._spec.num_stages
        if plan.rows:
            stage_seconds = self.step_seconds(contents)
        arrival = now
        for stage, seconds in enumerate(stage_seconds):
            start = max(arrival, self._free_at[stage])
            self._free_at[stage] = start + seconds
            arrival = start + seconds + hop
            if plan.rows:
                self.intervals.append(_interval(plan, contents, stage, start, seconds))
            if stage == 0 and self._spec.num_stages > 1:
                self._handing_on.append((start + seconds, plan.step_id))
        times = [StepTimes(step_id=plan.step_id, stage_seconds=stage_seconds)] if plan.rows else []
        answer = self._answer(plan)
        result = StepResult(
            step_id=plan.step_id,
            tokens=answer.tokens,
            times=times,
            prompt_scores=answer.prompt_scores,
        )
        self._results.append((arrival, result))

    def take_handed_on(self, now: float) -> int:
        """The latest step that stage 0 has handed on to another; -1 for none since the last."""
        step_id = -1
        while self._handing_on and self._handing_on[0][0] <= now:
            step_id = self._handing_on.popleft()[1]
        return step_id

    def take_result(self, now: float) -> StepResult | None:
        """The oldest step's result, once the head can have it."""
        if not self._results or self._results[0][0] > now:
            return None
        return self._results.popleft()[1]

    def step_seconds(self, contents: StepSample) -> list[float]:
        """How long a step takes on each stage, noise included."""
        return [
            model.predict(
                contents.chunks,
                decode_rows=contents.decode_rows,
                decode_context_tokens=contents.decode_context_tokens,
            )
            * self._noise()
            for model in self._spec.models
        ]

    def shape_seconds(self, shape: Chunk, *, attention: bool) -> list[float]:
        """How long a lone forward of this shape takes on each stage, as in a startup sweep."""
        return [
            (
                model.chunk_seconds(*shape)
                if attention
                else model.constant_seconds + model.linear_seconds_per_token * shape.new_tokens
            )
            * self._noise()
            for model in self._spec.models
        ]

    def _noise(self) -> float:
        sigma = self._spec.noise
        return self._rng.lognormvariate(-sigma * sigma / 2.0, sigma) if sigma > 0.0 else 1.0

    def _answer(self, plan: StepPlan) -> StageAnswer:
        if self._audited:
            answers = [stage.run(plan) for stage in self._audited]
            assert all(one == answers[0] for one in answers), "stages disagree about a sequence"
            return answers[-1]
        tokens = [
            SampledToken(row.sequence_id, row.epoch, DRAWN_TOKEN) for row in plan.rows if row.sample
        ]
        return StageAnswer(tokens, [])


def _interval(
    plan: StepPlan, contents: StepSample, stage: int, start: float, seconds: float
) -> StageInterval:
    """The plan's box on the timeline."""
    parts = []
    if contents.chunks:
        parts.append("prefill " + "+".join(str(chunk.new_tokens) for chunk in contents.chunks))
    if contents.decode_rows:
        parts.append(f"decode x{contents.decode_rows}")
    return StageInterval(
        stage=stage,
        step_id=plan.step_id,
        start_seconds=start,
        duration_seconds=seconds,
        label=", ".join(parts),
        sequence_ids=tuple(row.sequence_id for row in plan.rows),
        prefix_tokens=contents.chunks[0].prefix_tokens if contents.chunks else 0,
        num_tokens=sum(row.num_tokens for row in plan.rows),
    )
