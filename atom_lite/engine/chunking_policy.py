"""Config -> the chunk-size policy that the head holds, and the head's dealings with it.

The policy itself is pure (`atom_lite.chunking`). Here steps become samples, log lines get logged,
the startup sweep is run, and a saved profile is read and written.
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from atom_lite.chunking.atom_calibrator import AtomCalibrator
from atom_lite.chunking.calibrator import Calibrator, StepSample
from atom_lite.chunking.controller import AtomController, FittedController, StaticController
from atom_lite.chunking.latency_model import Chunk
from atom_lite.chunking.planner import plan_limits
from atom_lite.chunking.planners.atom import AtomPlanner, AtomSettings
from atom_lite.chunking.planners.fixed import FixedPlanner
from atom_lite.chunking.planners.linear import LinearPlanner
from atom_lite.chunking.planners.makespan import MakespanPlanner
from atom_lite.chunking.planners.sglang import SglangPlanner, SglangSettings
from atom_lite.chunking.profile import Fingerprint, Profile, load_profile, mismatch, save_profile
from atom_lite.errors import ConfigError
from atom_lite.messages import ChunkingStats, SamplingParams, SequenceStart, StepPlan, StepRow

if TYPE_CHECKING:
    from collections.abc import Iterable

    from atom_lite.chunking.controller import ChunkingController
    from atom_lite.chunking.refusal import Notice
    from atom_lite.config import Config
    from atom_lite.engine.executor import Executor
    from atom_lite.messages import StepResult
    from atom_lite.scheduler.scheduler import SchedulerLimits

SMOOTH_VARIABLE = "ATOM_DYNAMIC_CHUNKING_SMOOTH_FACTOR"
DEFAULT_SMOOTH_FACTOR = 0.75
REPORT_SECONDS = 10.0
# Sarathi-Serve's static schedule: from the budget down to an eighth of it in four spans.
_LINEAR_FALL, _LINEAR_SPANS, _LINEAR_LEAST_TOKENS = 8, 4, 32
# Results carry the times of the first and of the last stage.
_TIMED_STAGES = 2
_FITTED_POLICIES = ("makespan", "sglang")
_SWEEP_STEP_SECONDS = 60.0
_POLL_SECONDS = 0.0005
_STATS_SECONDS = 1.0
_SWEEP_SEQUENCE = -1  # and down from there: the frontend's ids are not negative

logger = logging.getLogger(__name__)


def make_controller(config: Config, limits: SchedulerLimits) -> ChunkingController:
    """The policy that the flags name.

    Raises:
        ConfigError: settings that the policy cannot work with.
    """
    settings = config.chunking
    if not settings.enable_dynamic_chunking or limits.pipeline_depth == 1:
        return StaticController(FixedPlanner(), "dynamic chunking is not enabled")
    budget = limits.prefill_step_tokens
    num_stages = limits.pipeline_depth
    sizes = plan_limits(min(budget, limits.max_model_len))
    if num_stages > _TIMED_STAGES and settings.dynamic_chunking_policy in _FITTED_POLICIES:
        raise ConfigError(
            f"--dynamic-chunking-policy {settings.dynamic_chunking_policy}: learns from the first "
            f"and the last stage only, so {num_stages} stages are not supported yet"
        )
    match settings.dynamic_chunking_policy:
        case "fixed":
            return StaticController(FixedPlanner(), "the policy is fixed")
        case "linear":
            low = max(_LINEAR_LEAST_TOKENS, budget // _LINEAR_FALL)
            planner = LinearPlanner(high_tokens=budget, low_tokens=low, stages=_LINEAR_SPANS)
            return StaticController(planner, "the policy is a static schedule")
        case "atom":
            return _atom(config, limits, num_stages)
        case "sglang":
            sglang = SglangSettings(
                base_tokens=budget,
                page_tokens=limits.block_size,
                max_model_len=limits.max_model_len,
                smooth_factor=smooth_factor(config),
            )
            calibrator = Calibrator(num_stages, floor_tokens=sizes.floor)
            return FittedController(
                SglangPlanner(sglang), calibrator, sizes, max_model_len=limits.max_model_len
            )
        case _:
            calibrator = Calibrator(num_stages, floor_tokens=sizes.floor)
            return FittedController(
                MakespanPlanner(sizes), calibrator, sizes, max_model_len=limits.max_model_len
            )


def policy_name(config: Config) -> str:
    """The policy in force, as it is shown."""
    settings = config.chunking
    return settings.dynamic_chunking_policy if settings.enable_dynamic_chunking else "fixed"


def _atom(config: Config, limits: SchedulerLimits, num_stages: int) -> AtomController:
    settings = AtomSettings(
        budget_tokens=limits.prefill_step_tokens,
        smooth_factor=smooth_factor(config),
        min_chunk_tokens=config.chunking.dynamic_chunking_min_chunk_size,
        block_size=limits.block_size,
        max_model_len=limits.max_model_len,
    )
    calibrator = AtomCalibrator(settings, num_stages=num_stages)
    log_notices(calibrator.start_notices())
    return AtomController(AtomPlanner(settings), calibrator)


def smooth_factor(config: Config) -> float:
    """The flag, else the environment's variable, else 0.75.

    Raises:
        ConfigError: the variable is no number from 0 to 1.
    """
    if config.chunking.dynamic_chunking_smooth_factor is not None:
        return config.chunking.dynamic_chunking_smooth_factor
    text = os.environ.get(SMOOTH_VARIABLE)
    if text is None:
        return DEFAULT_SMOOTH_FACTOR
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 1.0:
        raise ConfigError(f"{SMOOTH_VARIABLE}={text}: must be a number from 0 to 1")
    return value


def log_notices(notices: Iterable[Notice]) -> None:
    """Write a policy's lines to the log."""
    for notice in notices:
        logger.log(logging.WARNING if notice.level == "warning" else logging.INFO, notice.text)


class ChunkingDesk:
    """What the head does for its policy: samples in, log lines and the profile out.

    Args:
        controller: the policy.
        policy: its name, as shown.
        fingerprint: of this run, for the profile.
        profile_path: `--dynamic-chunking-profile`; None keeps nothing.
        block_size: tokens of a KV block.
        vocab_size: of the model; the startup sweep runs on made-up ids below it.
    """

    def __init__(
        self,
        controller: ChunkingController,
        fingerprint: Fingerprint,
        *,
        policy: str,
        profile_path: str | None,
        block_size: int,
        vocab_size: int,
    ) -> None:
        self.controller = controller
        self._vocab_size = vocab_size
        self._policy = policy
        self._block_size = block_size
        self._fingerprint = fingerprint
        self._path = None if profile_path is None else Path(profile_path)
        self._pending: dict[int, StepSample] = {}  # step id -> what it holds, times still missing
        self._report_due = 0.0
        self._stats: ChunkingStats | None = None
        self._stats_due = 0.0

    def load(self, executor: Executor) -> int:
        """Adopt the saved profile, or else run the startup sweep.

        Returns:
            The first step id that the sweep has not used.

        Raises:
            ConfigError: the profile's file is there but is none.
            Exception: what a step of the sweep raised; the start fails then.
        """
        saved = load_profile(self._path) if self._path is not None else None
        if saved is not None and isinstance(self.controller, FittedController):
            difference = mismatch(saved.fingerprint, self._fingerprint)
            if difference is None:
                log_notices(self.controller.adopt(saved.models, saved.qualities))
                return 0
            logger.warning("%s is of another run and not used: %s", self._path, difference)
        sweep = self.controller.startup()
        if sweep is None:
            return 0
        step_id = 0
        drops: list[tuple[int, int]] = []
        while (shape := sweep.next_shape()) is not None:
            plan = self._sweep_plan(step_id, shape, drops)
            plan = msgspec.structs.replace(plan, skip_attention=sweep.is_attention_free)
            result = _run_now(executor, plan)
            sweep.finish_shape(result.stage_seconds)
            drops = [(_SWEEP_SEQUENCE - step_id, 0)]
            step_id += 1
        if drops:
            _run_now(executor, StepPlan(step_id=step_id, starts=[], rows=[], drops=drops))
            step_id += 1
        log_notices(sweep.finish())
        self._save()
        return step_id

    def _sweep_plan(self, step_id: int, shape: Chunk, drops: list[tuple[int, int]]) -> StepPlan:
        """One forward of a shape: its prefix is taken as there, its tokens are any."""
        num_tokens = shape.prefix_tokens + shape.new_tokens
        sequence_id = _SWEEP_SEQUENCE - step_id
        start = SequenceStart(
            sequence_id=sequence_id,
            epoch=0,
            token_ids=[index % self._vocab_size for index in range(num_tokens)],
            num_prompt_tokens=num_tokens,
            sampling=SamplingParams(max_tokens=1),
        )
        row = StepRow(
            sequence_id=sequence_id,
            epoch=0,
            start=shape.prefix_tokens,
            num_tokens=shape.new_tokens,
            sample=False,
            new_block_ids=list(range(-(-num_tokens // self._block_size))),
        )
        return StepPlan(step_id=step_id, starts=[start], rows=[row], drops=drops)

    def planned(self, plan: StepPlan) -> None:
        """Note what a step holds, if its time is worth keeping."""
        chunks = [row for row in plan.rows if not row.token_ids]
        decodes = [row for row in plan.rows if row.token_ids]
        if not self.controller.wants_sample(num_sequences=len(plan.rows), num_prefills=len(chunks)):
            return
        self._pending[plan.step_id] = StepSample(
            chunks=tuple(Chunk(row.start, row.num_tokens) for row in chunks),
            stage_seconds=(),
            decode_rows=len(decodes),
            decode_context_tokens=sum(row.start + 1 for row in decodes),
            first_sequence_id=chunks[0].sequence_id if chunks else -1,
        )

    def finished(self, result: StepResult, now: float) -> None:
        """Take a step's times, log what the policy says, report now and then."""
        sample = self._pending.pop(result.step_id, None)
        if sample is not None and result.stage_seconds:
            notices = self.controller.record(
                sample._replace(stage_seconds=tuple(result.stage_seconds))
            )
            log_notices(notices)
            if notices:
                self._save()
        log_notices(self.controller.end_step())
        if now >= self._report_due:
            self._report_due = now + REPORT_SECONDS
            line = self.controller.report.line()
            if line is not None and self.controller.status().state != "off":
                logger.info("%s", line)

    def stats(self, now: float) -> ChunkingStats:
        """What `/server_info` and `/metrics` show; gathered at most once a second."""
        if self._stats is None or now >= self._stats_due:
            self._stats_due = now + _STATS_SECONDS
            self._stats = self._gather_stats()
        return self._stats

    def _gather_stats(self) -> ChunkingStats:
        status = self.controller.status()
        planner = self.controller.planner
        plan = planner.last_plan if isinstance(planner, MakespanPlanner) else None
        return ChunkingStats(
            policy=self._policy,
            num_stages=len(self._fingerprint.layers_per_stage),
            state=status.state,
            reason=status.reason,
            chunks_by_reason={
                str(reason): count
                for reason, count in self.controller.report.total_by_reason.items()
            },
            models=[model.describe() for model in status.models],
            fit_errors=[
                None if quality is None else quality.median_relative_error
                for quality in status.qualities
            ],
            prediction_error=status.recent_error,
            last_plan=[] if plan is None else list(plan.sizes),
            last_plan_seconds=None if plan is None else plan.predicted_seconds,
        )

    def _save(self) -> None:
        """Keep the installed model; a disk that refuses costs a warning, not the server."""
        status = self.controller.status()
        if self._path is None or not status.models or not status.qualities:
            return
        try:
            save_profile(
                self._path,
                Profile(
                    fingerprint=self._fingerprint, models=status.models, qualities=status.qualities
                ),
            )
        except ConfigError as error:
            logger.warning("%s", error)


def _run_now(executor: Executor, plan: StepPlan) -> StepResult:
    """Run one plan and wait for it; nothing else is in flight before the first request."""
    executor.start(plan)
    deadline = time.monotonic() + _SWEEP_STEP_SECONDS
    while not (results := executor.take_results()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"a step of the startup sweep took over {_SWEEP_STEP_SECONDS:g} s")
        time.sleep(_POLL_SECONDS)
    (result,) = results
    return result
