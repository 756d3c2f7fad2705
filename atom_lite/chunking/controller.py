"""One chunk-size policy as the engine holds it: planner, calibration and report together.

    engine                                   controller
    startup() ... next_shape/finish_shape    the forwards to time before the first request
    every SubmitSequence                     submitted(id, tokens, cached tokens)
    every scheduler step                     planner.begin_step, planner.next_chunk, report.count
    every StepResult                         record(StepSample) -> lines for the log
    every step of the head                   end_step() -> lines for the log
    every background job that has ended      take_notices() -> lines for the log
    each batch's flag                        needs_acknowledgement

Which policy it is does not show outside. Pure; runs in the head process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from atom_lite.chunking.calibrator import UNKNOWN_SIGMA
from atom_lite.chunking.fit_robust import FitQuality
from atom_lite.chunking.latency_model import LatencyModel
from atom_lite.chunking.planner import ChunkPlanner, ChunkRequest
from atom_lite.chunking.report import ChunkReport
from atom_lite.chunking.startup import AtomStartup, PrefixStartup

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atom_lite.chunking.atom_calibrator import AtomCalibrator
    from atom_lite.chunking.calibrator import Calibrator, StepSample
    from atom_lite.chunking.planner import PlanLimits
    from atom_lite.chunking.planners.atom import AtomPlanner
    from atom_lite.chunking.refusal import Notice
    from atom_lite.chunking.startup import StartupSweep


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkingStatus:
    """What `/server_info` and `/metrics` show of the calibration.

    Attributes:
        state: of the calibration, "off" for a policy without one.
        reason: why it is in that state, in words.
        models: the installed models, one per stage (ATOM: the head's for all).
        qualities: how good each fit was.
        recent_error: median relative error of the last predictions, None before any.
    """

    state: str
    reason: str
    models: tuple[LatencyModel, ...] = ()
    qualities: tuple[FitQuality | None, ...] = ()
    recent_error: float | None = None


class ModelReport(NamedTuple):
    """What a batching policy may size steps with.

    Attributes:
        models: one per stage, or one for all.
        stated_error: median relative error of the worst stage's fit.
    """

    models: tuple[LatencyModel, ...]
    stated_error: float


class ModelPlanner(ChunkPlanner, Protocol):
    """A planner that takes models from a calibration."""

    def install(self, models: Sequence[LatencyModel]) -> None:
        """Plan with these models, one per stage."""
        ...

    def prepare(self, request: ChunkRequest) -> None:
        """A prompt has arrived whose first chunk this will be."""
        ...


class ChunkingController(Protocol):
    """What the engine knows of a chunk-size policy."""

    report: ChunkReport

    @property
    def planner(self) -> ChunkPlanner:
        """What the scheduler asks."""
        ...

    @property
    def needs_acknowledgement(self) -> bool:
        """Whether a batch scheduled now has its middle chunks acknowledged by the last stage."""
        ...

    def startup(self) -> StartupSweep | None:
        """The sweep to run before serving; None where there is none."""
        ...

    def submitted(self, sequence_id: int, prompt_tokens: int, cached_tokens: int) -> None:
        """A prompt has arrived; a plan for what is not cached of it may be searched ahead."""
        ...

    def wants_sample(self, *, num_sequences: int, num_prefills: int) -> bool:
        """Whether a step with these rows is worth timing."""
        ...

    def record(self, sample: StepSample) -> list[Notice]:
        """Take a step's times."""
        ...

    def end_step(self) -> list[Notice]:
        """Called after each step of the head."""
        ...

    def take_notices(self) -> list[Notice]:
        """Called after a background job has delivered: what it brought."""
        ...

    def status(self) -> ChunkingStatus:
        """Where the calibration stands."""
        ...

    def model_report(self) -> ModelReport | None:
        """The models of now; None before there are any. Asked for at every step."""
        ...


class StaticController:
    """A policy that learns nothing: fixed and linear."""

    def __init__(
        self, planner: ChunkPlanner, reason: str, models: tuple[LatencyModel, ...] = ()
    ) -> None:
        """`reason`: why nothing is learned, for the status; `models`: known without learning."""
        self._models = models
        self.planner = planner
        self.report = ChunkReport()
        self.needs_acknowledgement = False
        self._reason = reason

    def startup(self) -> StartupSweep | None:
        """None."""
        return None

    def submitted(self, sequence_id: int, prompt_tokens: int, cached_tokens: int) -> None:
        """Nothing is planned ahead."""

    def wants_sample(self, *, num_sequences: int, num_prefills: int) -> bool:
        """Nothing is worth timing."""
        del num_sequences, num_prefills
        return False

    def record(self, sample: StepSample) -> list[Notice]:
        """Nothing is kept."""
        del sample
        return []

    def end_step(self) -> list[Notice]:
        """Nothing to do."""
        return []

    def take_notices(self) -> list[Notice]:
        """Nothing runs in the background."""
        return []

    def status(self) -> ChunkingStatus:
        """Off, and why."""
        return ChunkingStatus(state="off", reason=self._reason)

    def model_report(self) -> ModelReport | None:
        """The models that were given."""
        return ModelReport(self._models, 0.0) if self._models else None


class AtomController:
    """ATOM's policy: pure prefills on the head stage are sampled until the one fit is accepted."""

    def __init__(self, planner: AtomPlanner, calibrator: AtomCalibrator) -> None:
        self.planner = planner
        self.report = ChunkReport()
        self._calibrator = calibrator

    @property
    def needs_acknowledgement(self) -> bool:
        """While calibrating or installed."""
        return self._calibrator.needs_acknowledgement

    def startup(self) -> StartupSweep | None:
        """ATOM's attention-free grid."""
        sizes = self._calibrator.startup_sizes()
        return AtomStartup(sizes, self._finish_startup) if sizes else None

    def submitted(self, sequence_id: int, prompt_tokens: int, cached_tokens: int) -> None:
        """Nothing is planned ahead."""

    def wants_sample(self, *, num_sequences: int, num_prefills: int) -> bool:
        """Single-sequence prefills while calibrating."""
        return self._calibrator.wants_sample(num_sequences=num_sequences, num_prefills=num_prefills)

    def record(self, sample: StepSample) -> list[Notice]:
        """Keep the head stage's time of a step that holds one chunk and nothing else."""
        if len(sample.chunks) == 1 and sample.decode_rows == 0:
            self._calibrator.add_sample(
                sequence_id=sample.first_sequence_id,
                prefix_tokens=sample.chunks[0].prefix_tokens,
                chunk_tokens=sample.chunks[0].new_tokens,
                seconds=sample.stage_seconds[0],
            )
        return []

    def end_step(self) -> list[Notice]:
        """Poll every 32nd step."""
        notices = self._calibrator.end_step()
        self._hand_over()
        return notices

    def take_notices(self) -> list[Notice]:
        """Nothing runs in the background."""
        return []

    def status(self) -> ChunkingStatus:
        """The state machine's."""
        model = self._calibrator.model
        return ChunkingStatus(
            state=self._calibrator.state,
            reason=self._calibrator.reason,
            models=(model,) if model is not None else (),
        )

    def model_report(self) -> ModelReport | None:
        """The head's model, which stands for every stage; its fit states no error."""
        model = self._calibrator.model
        return None if model is None else ModelReport((model,), UNKNOWN_SIGMA)

    def _finish_startup(self, sizes: Sequence[int], seconds: list[float]) -> list[Notice]:
        notices = self._calibrator.finish_startup(sizes, seconds)
        self._hand_over()
        return notices

    def _hand_over(self) -> None:
        self.planner.model = self._calibrator.model
        self.planner.is_calibrating = self._calibrator.state == "calibrating"


class FittedController:
    """A policy on our own calibration: makespan, and SGLang's rule for comparison.

    Fixed and linear chunks too, where the batching policy sizes steps with the models.
    """

    def __init__(
        self,
        planner: ModelPlanner,
        calibrator: Calibrator,
        limits: PlanLimits,
        *,
        max_model_len: int,
    ) -> None:
        self.planner = planner
        self.report = ChunkReport()
        self.needs_acknowledgement = False
        self._calibrator = calibrator
        self._limits = limits
        self._max_model_len = max_model_len

    def adopt(
        self, models: Sequence[LatencyModel], qualities: Sequence[FitQuality | None]
    ) -> list[Notice]:
        """Start from a saved profile; there is no startup sweep then."""
        notices = self._calibrator.adopt(models, qualities)
        self._hand_over()
        return notices

    def startup(self) -> StartupSweep | None:
        """Two seconds over real prefixes, unless a profile was loaded."""
        if self._calibrator.models is not None:
            return None
        return PrefixStartup(
            self._limits, self._max_model_len, self._calibrator.keep, self._finish_startup
        )

    def submitted(self, sequence_id: int, prompt_tokens: int, cached_tokens: int) -> None:
        """Begin to plan the prompt, from its prefix hit on."""
        self.planner.prepare(
            ChunkRequest(
                sequence_id=sequence_id,
                prefix_tokens=cached_tokens,
                remaining_tokens=prompt_tokens - cached_tokens,
                budget_tokens=self._limits.most,
            )
        )

    def wants_sample(self, *, num_sequences: int, num_prefills: int) -> bool:
        """Every step is worth timing: drift shows in any of them."""
        del num_prefills
        return num_sequences > 0

    def record(self, sample: StepSample) -> list[Notice]:
        """Take the times of all stages."""
        notices = self._calibrator.record(sample)
        self._hand_over()
        return notices

    def end_step(self) -> list[Notice]:
        """Nothing waits for a step to pass."""
        return []

    def take_notices(self) -> list[Notice]:
        """Hand over a model that a fit in the background has brought."""
        self._hand_over()
        return self._calibrator.take_notices()

    def status(self) -> ChunkingStatus:
        """The calibrator's."""
        models = self._calibrator.models
        return ChunkingStatus(
            state=self._calibrator.state,
            reason=self._calibrator.reason,
            models=models or (),
            qualities=self._calibrator.qualities,
            recent_error=self._calibrator.recent_error,
        )

    def model_report(self) -> ModelReport | None:
        """The calibrator's models; one that came without a quality states the usual error."""
        models = self._calibrator.models
        if models is None:
            return None
        errors = [
            UNKNOWN_SIGMA if quality is None else quality.median_relative_error
            for quality in self._calibrator.qualities
        ]
        return ModelReport(models, max(errors))

    def _finish_startup(self) -> list[Notice]:
        notices = self._calibrator.attempt_now()
        self._hand_over()
        return notices

    def _hand_over(self) -> None:
        models = self._calibrator.models
        if models is not None:
            self.planner.install(models)
