"""Calibration of the makespan policy: it never dies, and it says what it is doing.

    collecting --fit accepted--> installed --drift--> drifting --refit accepted--> installed
        ^  |                                             |  |
        '--' fit refused: reason kept,                   '--' refused: the old model stays,
             tried again, ever later                          tried again, ever later

Every step's time on every stage is offered (`record`). Graph replays and eager runs are kept apart:
the former say nothing about a step with a prefill in it. After the first model, refits are held by
the model before (`fit_robust`), because chunks that a model picked cannot tell its terms apart.

Fits run in the background, on rows that were copied for them; what they find is taken when they are
done. Pure; back-off counts samples, not seconds. Runs in the head process.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from atom_lite.chunking.background import Background, Inline
from atom_lite.chunking.drift import DriftDetector
from atom_lite.chunking.fit_robust import (
    DecodeRow,
    DecodeTerms,
    FitQuality,
    PrefillRow,
    fit_decode,
)
from atom_lite.chunking.fit_stages import StageFit, StageRows, fit_stages
from atom_lite.chunking.refusal import FitRefused, Notice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atom_lite.chunking.latency_model import Chunk, LatencyModel
    from atom_lite.chunking.planner import PlanLimits

CalibrationState: TypeAlias = Literal["collecting", "installed", "drifting"]

MAX_PREFILL_ROWS = 512
MAX_DECODE_ROWS = 256
FIRST_FIT_SAMPLES = 12
LOOK_AGAIN_SAMPLES = 4
REFIT_SAMPLES = 16
MAX_BACK_OFF_SAMPLES = 512
MAX_MISSING_SAMPLES = 16  # however many seem to be missing: the noise of a few rows is a guess
REFRESH_DECODES = 64
YOUNG_ROWS = 48
MIXTURE_RATIO = 1.5
MIXTURE_SLACK = 0.02
RECENT_ERRORS = 64
UNKNOWN_SIGMA = 0.1  # of a model that came without a quality
# A step with fewer new tokens than this per decode row is neither prefill- nor decode-dominated.
PREFILL_DOMINANCE = 8


class StepSample(NamedTuple):
    """What a step held and how long each stage took.

    `draw_seconds`, on top of the last stage's, is a cost of rows that draw tokens. It counts where
    there are decodes: the model's decode terms hold it. A prompt draws once, after its last chunk,
    however it is cut; counted, it would make some chunks look dearer than others like them.
    """

    chunks: tuple[Chunk, ...]
    stage_seconds: tuple[float, ...]
    decode_rows: int = 0
    decode_context_tokens: int = 0
    first_sequence_id: int = -1  # of the first chunk
    is_graph_replay: bool = False
    draw_seconds: float = 0.0

    @property
    def new_tokens(self) -> int:
        """Tokens of prompts that it computed."""
        return sum(chunk.new_tokens for chunk in self.chunks)

    def seconds_to_learn(self) -> tuple[float, ...]:
        """How long each stage took for what its model speaks of."""
        if self.decode_rows == 0:
            return self.stage_seconds
        *others, last = self.stage_seconds
        return (*others, last + self.draw_seconds)


class _Stage:
    """One stage's rows, model and drift."""

    def __init__(self) -> None:
        self.prefill_rows: deque[PrefillRow] = deque(maxlen=MAX_PREFILL_ROWS)
        self.eager_decodes: deque[DecodeRow] = deque(maxlen=MAX_DECODE_ROWS)
        self.model: LatencyModel | None = None
        self.quality: FitQuality | None = None
        self.drift: DriftDetector | None = None

    def rows(self) -> StageRows:
        return StageRows(tuple(self.prefill_rows), tuple(self.eager_decodes), self.model)

    def install(self, model: LatencyModel, quality: FitQuality | None) -> None:
        self.model = model
        if quality is not None:
            self.quality = quality
        self.drift = DriftDetector(self.quality.drift_sigma if self.quality else UNKNOWN_SIGMA)


class Calibrator:
    """All stages' models, refitted as steps come in."""

    def __init__(
        self, num_stages: int, limits: PlanLimits, background: Background | None = None
    ) -> None:
        """`limits`: of planned chunks; those below its floor are not fitted."""
        self._stages = [_Stage() for _ in range(num_stages)]
        self._limits = limits
        self._background = background or Inline()
        self._is_fitting = False
        self._num_drifts = 0
        self._longest_tokens = 0  # of any prompt, as far as it has been computed
        self._notices: list[Notice] = []
        self.state: CalibrationState = "collecting"
        self.reason = "no step has been timed yet"
        self.last_refusal: FitRefused | None = None
        self.num_refused = 0
        self.num_installed = 0
        self._fresh = 0  # prefill samples since the last attempt
        self._fresh_decodes = 0
        self._back_off = FIRST_FIT_SAMPLES
        self._refine_after = REFIT_SAMPLES
        self._young_wait = 1  # samples before a young model that misfits is fitted again
        self._errors: deque[float] = deque(maxlen=RECENT_ERRORS)

    @property
    def models(self) -> tuple[LatencyModel, ...] | None:
        """The accepted models, one per stage."""
        models = [stage.model for stage in self._stages]
        return tuple(m for m in models if m is not None) if all(models) else None

    @property
    def qualities(self) -> tuple[FitQuality | None, ...]:
        """How good each stage's fit was; None where the model came without."""
        return tuple(stage.quality for stage in self._stages)

    @property
    def recent_error(self) -> float | None:
        """Median relative error of the last predictions; what /metrics shows."""
        ordered = sorted(self._errors)
        return ordered[len(ordered) // 2] if ordered else None

    def take_notices(self) -> list[Notice]:
        """Lines for the log since the last call."""
        notices, self._notices = self._notices, []
        return notices

    def adopt(
        self, models: Sequence[LatencyModel], qualities: Sequence[FitQuality | None]
    ) -> list[Notice]:
        """Start from a saved profile instead of samples."""
        for stage, model, quality in zip(self._stages, models, qualities, strict=True):
            stage.install(model, quality)
        self._finish("loaded from a profile")
        return self.take_notices()

    def record(self, sample: StepSample) -> list[Notice]:
        """Take a step's times; begins a fit when one is due.

        Returns:
            Lines for the log. After an "installed" one `models` has changed.
        """
        if not self.keep(sample):
            if self._fresh_decodes >= REFRESH_DECODES:
                self._refresh_decodes()
            return self.take_notices()
        drifted = self._compare(sample)
        self._fresh += 1
        wait = self._refine_after if self.state == "installed" else self._back_off
        is_off = drifted and self.state == "installed"
        if is_off and not self._is_young:
            self._start_drift()
        elif self._fresh >= (min(wait, self._young_wait) if is_off else wait):
            self._attempt()
        return self.take_notices()

    def keep(self, sample: StepSample) -> bool:
        """Take a step's times without fitting; whether it is a prefill step that counts."""
        if len(sample.stage_seconds) != len(self._stages) or min(sample.stage_seconds) <= 0.0:
            return False
        if not sample.chunks:
            self._keep_decode(sample)
            return False
        if not self._is_prefill_dominated(sample):
            return False
        self._keep_prefill(sample)
        return True

    def _refresh_decodes(self) -> None:
        """Bring decode terms up to date; prompts may be rare where decodes are many."""
        self._fresh_decodes = 0
        if self.models is None:
            return  # the first fit brings its own
        rows = [tuple(stage.eager_decodes) for stage in self._stages]
        self._background.run(partial(_fit_decodes, rows), partial(_put_decodes, self._stages))

    def attempt_now(self) -> list[Notice]:
        """Fit with what there is; after a startup sweep."""
        self._attempt()
        return self.take_notices()

    @property
    def _is_young(self) -> bool:
        """Whether a misfit more likely shows what the first few rows did not."""
        quality = self._stages[0].quality
        rows = len(self._stages[0].prefill_rows)
        return quality is not None and quality.num_rows < min(YOUNG_ROWS, rows)

    def _is_mixture(self, fits: Sequence[StageFit]) -> bool:
        """Whether a refit describes its rows so much worse that they must be of two machines."""
        return any(
            stage.quality is not None
            and fit.quality.sigma > MIXTURE_RATIO * stage.quality.drift_sigma + MIXTURE_SLACK
            for stage, fit in zip(self._stages, fits, strict=True)
        )

    def _is_prefill_dominated(self, sample: StepSample) -> bool:
        new = sample.new_tokens
        is_linear = min(chunk.new_tokens for chunk in sample.chunks) >= self._limits.floor
        return is_linear and new >= PREFILL_DOMINANCE * sample.decode_rows

    def _keep_decode(self, sample: StepSample) -> None:
        if sample.is_graph_replay or sample.decode_rows == 0:
            return
        self._fresh_decodes += 1
        for stage, seconds in zip(self._stages, sample.seconds_to_learn(), strict=True):
            stage.eager_decodes.append(
                DecodeRow(sample.decode_rows, sample.decode_context_tokens, seconds)
            )

    def _keep_prefill(self, sample: StepSample) -> None:
        # gamma and b are per chunk, c per step: sums over the chunks are exactly the columns.
        prefix = sum(chunk.prefix_tokens for chunk in sample.chunks)
        new = sample.new_tokens
        area = sum(chunk.area for chunk in sample.chunks)
        extents = (chunk.prefix_tokens + chunk.new_tokens for chunk in sample.chunks)
        self._longest_tokens = max(self._longest_tokens, *extents)
        for stage, seconds in zip(self._stages, sample.seconds_to_learn(), strict=True):
            stage.prefill_rows.append(
                PrefillRow(
                    prefix, new, area, sample.decode_rows, sample.decode_context_tokens, seconds
                )
            )

    def _compare(self, sample: StepSample) -> bool:
        """Note the prediction error; whether some stage has drifted."""
        drifted = False
        worst = 0.0
        for stage, seconds in zip(self._stages, sample.seconds_to_learn(), strict=True):
            if stage.model is None or stage.drift is None:
                return False
            predicted = stage.model.predict(
                sample.chunks,
                decode_rows=sample.decode_rows,
                decode_context_tokens=sample.decode_context_tokens,
            )
            worst = max(worst, abs(predicted - seconds) / seconds)
            drifted |= stage.drift.observe(seconds, predicted)
        self._errors.append(worst)
        return drifted

    def _start_drift(self) -> None:
        """Forget what was measured before the drift, and collect anew."""
        self._num_drifts += 1
        for stage in self._stages:
            recent = list(stage.prefill_rows)[-REFIT_SAMPLES:]
            stage.prefill_rows.clear()
            stage.prefill_rows.extend(recent)
        self.state = "drifting"
        self.reason = "step times have drifted from the model"
        self._fresh = 0
        self._back_off = max(self._back_off, REFIT_SAMPLES)
        self._notices.append(Notice("info", f"Dynamic chunking: {self.reason}; refitting"))

    def _attempt(self) -> None:
        """Begin a fit, unless one runs."""
        if self._is_fitting:
            return
        self._fresh = 0
        self._is_fitting = True
        rows = [stage.rows() for stage in self._stages]
        self._background.run(
            partial(fit_stages, rows, self._limits, self._longest_tokens),
            partial(self._take, self._num_drifts),
        )

    def _take(self, num_drifts: int, outcome: list[StageFit] | FitRefused) -> None:
        """What a fit has found; nothing where its rows are of before a drift."""
        self._is_fitting = False
        if num_drifts != self._num_drifts:
            return
        if isinstance(outcome, FitRefused):
            self._refuse(outcome)
        elif self.state == "installed" and self._is_mixture(outcome):
            self._start_drift()
        else:
            self._accept(outcome)

    def _accept(self, fits: Sequence[StageFit]) -> None:
        for stage, fit in zip(self._stages, fits, strict=True):
            stage.install(*fit)
        # Ever more patient: a machine that changes all the time is not refitted all day.
        if self.state == "drifting":
            self._back_off = min(2 * self._back_off, MAX_BACK_OFF_SAMPLES)
        else:
            self._back_off = REFIT_SAMPLES
            self._refine_after = min(2 * self._refine_after, MAX_BACK_OFF_SAMPLES)
        self._finish(f"fitted to {fits[0].quality.num_rows} steps")

    def _refuse(self, refused: FitRefused) -> None:
        self.num_refused += 1
        self.last_refusal = refused
        wait = self._wait_after(refused)
        if self.state == "installed":
            self._refine_after, self._young_wait = wait, LOOK_AGAIN_SAMPLES
        else:
            self._back_off = wait
            self.reason = refused.message
        if self.num_refused & (self.num_refused - 1):
            return  # the log hears of the first, second, fourth, eighth, ...
        kept = "the previous model stays" if self.models else "there is no model yet"
        text = f"Dynamic chunking calibration refused ({refused.gate}): {refused.message}"
        self._notices.append(Notice("info", f"{text}; {kept}, next try after {wait} samples"))

    def _wait_after(self, refused: FitRefused) -> int:
        """How many samples to collect before the next try."""
        if self.state == "installed":
            return min(2 * self._refine_after, MAX_BACK_OFF_SAMPLES)
        if refused.gate == "samples":
            # Seen before anything is solved, so it costs nothing to look again soon.
            return LOOK_AGAIN_SAMPLES
        if refused.num_missing is not None:
            return min(max(refused.num_missing, LOOK_AGAIN_SAMPLES), MAX_MISSING_SAMPLES)
        return min(2 * max(self._back_off, FIRST_FIT_SAMPLES), MAX_BACK_OFF_SAMPLES)

    def _finish(self, reason: str) -> None:
        self.state = "installed"
        self.reason = reason
        self._young_wait = 1
        self.num_installed += 1
        self._fresh = 0
        verb = "installed" if self.num_installed == 1 else "refitted"
        for index, stage in enumerate(self._stages):
            assert stage.model is not None
            why = self.reason
            if stage.quality is not None:
                why += f", median error {stage.quality.median_relative_error:.1%}"
            text = f"Dynamic chunking latency model {verb}: {stage.model.describe()}"
            self._notices.append(Notice("info", f"{text} on stage {index} ({why})"))


def _fit_decodes(stages: Sequence[Sequence[DecodeRow]]) -> list[DecodeTerms | None]:
    """The decode terms of every stage."""
    return [fit_decode(rows) for rows in stages]


def _put_decodes(stages: Sequence[_Stage], fits: Sequence[DecodeTerms | None]) -> None:
    """Into the models of now, which may be newer than the fits."""
    for stage, terms in zip(stages, fits, strict=True):
        if stage.model is not None and terms is not None:
            stage.model = stage.model.with_decodes(*terms)
