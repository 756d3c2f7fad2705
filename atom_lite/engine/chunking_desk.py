"""The head's dealings with its chunk-size policy: steps become samples, notices log lines.

The policy itself is pure (`atom_lite.chunking`). The desk keeps what a step held until its times
come back, writes the log, reads and writes the saved profile, and gathers what `/server_info` and
`/metrics` show. Only the head's thread calls it. Searches, fits and the disk are left to a thread
in the background, whose outcomes it hands over between two turns of the loop.
"""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from atom_lite.chunking.background import Inline
from atom_lite.chunking.controller import FittedController
from atom_lite.chunking.profile import Fingerprint, Profile, load_profile, mismatch, save_profile
from atom_lite.chunking.step_contents import step_sample
from atom_lite.engine.chunking_startup import run_sweep
from atom_lite.engine.chunking_stats import chunking_stats
from atom_lite.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from atom_lite.chunking.background import Background
    from atom_lite.chunking.calibrator import StepSample
    from atom_lite.chunking.controller import ChunkingController
    from atom_lite.chunking.latency_model import LatencyModel
    from atom_lite.chunking.refusal import Notice
    from atom_lite.engine.executor import Executor
    from atom_lite.messages import ChunkingStats, StepPlan, StepResult, StepTimes, SubmitSequence

REPORT_SECONDS = 10.0
_STATS_SECONDS = 1.0

logger = logging.getLogger(__name__)


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
        background: where the controller's jobs run, closed with this; by default at once.
        profile_path: `--dynamic-chunking-profile`; None keeps nothing.
        block_size: tokens of a KV block.
        vocab_size: of the model; the startup sweep runs on made-up ids below it.
    """

    def __init__(
        self,
        controller: ChunkingController,
        fingerprint: Fingerprint,
        background: Background | None = None,
        *,
        policy: str,
        profile_path: str | None,
        block_size: int,
        vocab_size: int,
    ) -> None:
        self.controller = controller
        self._background = background or Inline()
        self._saved_models: tuple[LatencyModel, ...] = ()  # without their decode terms
        self._vocab_size = vocab_size
        self._policy = policy
        self._block_size = block_size
        self._fingerprint = fingerprint
        self._path = None if profile_path is None else Path(profile_path)
        self._pending: dict[int, StepSample] = {}  # step id -> what it holds, times still missing
        self._report_due = 0.0
        self._stats: ChunkingStats | None = None
        self._stats_due = 0.0

    def load(self, executor: Executor, *, time_limit_seconds: float = 0.0) -> int:
        """Adopt the saved profile, or else run the startup sweep.

        Args:
            executor: of the stages.
            time_limit_seconds: see `run_sweep`.

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
                self._saved_models = tuple(model.without_decodes() for model in saved.models)
                return 0
            logger.warning("%s is of another run and not used: %s", self._path, difference)
        sweep = self.controller.startup()
        if sweep is None:
            return 0
        logger.info("Dynamic chunking: timing forward passes before the first request")
        first_step_id = run_sweep(
            executor,
            sweep,
            block_size=self._block_size,
            vocab_size=self._vocab_size,
            time_limit_seconds=time_limit_seconds,
        )
        log_notices(sweep.finish())
        return first_step_id

    def submitted(self, message: SubmitSequence, cached_tokens: int) -> None:
        """A prompt has arrived: begin to plan what is not cached of it."""
        prompt_tokens = len(message.prompt_token_ids)
        self.controller.submitted(message.sequence_id, prompt_tokens, cached_tokens)

    def deliver(self) -> None:
        """Hand over what was found in the background since the last turn.

        Raises:
            Exception: a job in the background raised.
        """
        if self._background.deliver():
            log_notices(self.controller.take_notices())
            self._save_new_models()

    def close(self) -> None:
        """End the background thread."""
        self._background.close()

    def planned(self, plan: StepPlan) -> None:
        """Note what a step holds, if its time is worth keeping."""
        sample = step_sample(plan)
        num_prefills = len(sample.chunks)
        if self.controller.wants_sample(num_sequences=len(plan.rows), num_prefills=num_prefills):
            self._pending[plan.step_id] = sample

    def finished(self, result: StepResult) -> None:
        """Take the times that have become known, and log what the policy says."""
        for times in result.times:
            self._timed(times)
        log_notices(self.controller.end_step())

    def report(self, now: float) -> None:
        """Log now and then what decided the sizes of chunks; to be called at least as often."""
        if now >= self._report_due:
            self._report_due = now + REPORT_SECONDS
            line = self.controller.report.line()
            if line is not None and self.controller.status().state != "off":
                logger.info("%s", line)

    def _timed(self, times: StepTimes) -> None:
        """How long a step took on all stages, this one or one before."""
        # Times come in the order of steps: of those before this one none will come any more.
        while self._pending and (oldest := next(iter(self._pending))) < times.step_id:
            del self._pending[oldest]
        sample = self._pending.pop(times.step_id, None)
        if sample is not None:
            sample = sample._replace(
                stage_seconds=tuple(times.stage_seconds), draw_seconds=times.draw_seconds
            )
            log_notices(self.controller.record(sample))
            self._save_new_models()

    def stats(self, now: float) -> ChunkingStats:
        """What `/server_info` and `/metrics` show; gathered at most once a second."""
        if self._stats is None or now >= self._stats_due:
            self._stats_due = now + _STATS_SECONDS
            self._stats = self._gather_stats()
        return self._stats

    def _gather_stats(self) -> ChunkingStats:
        return chunking_stats(
            self.controller, self._policy, num_stages=len(self._fingerprint.layers_per_stage)
        )

    def _save_new_models(self) -> None:
        """Keep a newly installed model; a disk that refuses costs a warning, not the server."""
        status = self.controller.status()
        if self._path is None or not status.qualities:
            return
        # Decode terms are refreshed every few seconds; they are written with the next fit.
        prefill = tuple(model.without_decodes() for model in status.models)
        if prefill == self._saved_models:
            return
        self._saved_models = prefill
        profile = Profile(
            fingerprint=self._fingerprint, models=status.models, qualities=status.qualities
        )
        self._background.run(partial(_try_to_save, self._path, profile), _warn)


def _try_to_save(path: Path, profile: Profile) -> str | None:
    """Why the profile could not be written, or None."""
    try:
        save_profile(path, profile)
    except ConfigError as error:
        return str(error)
    return None


def _warn(problem: str | None) -> None:
    if problem is not None:
        logger.warning("%s", problem)
