"""How long the step under construction will take, and whether that can be believed.

Why: policy `slo` fills a step up to a time. The latency model gives the shape; what it is off by in
the very steps that are being built (chunks beside decodes, which fits see few of) is learned from
their times as one bounded factor. When even with it the model is off by more than it says of
itself, it is not used: a static budget from recent costs takes its place until it is right again.

Pure; runs in the head process. Times of steps come in with their results.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from atom_lite.chunking.latency_model import Chunk
from atom_lite.chunking.refusal import Notice
from atom_lite.scheduler.step_costs import CAUTIOUS_SHARE, RECENT_STEPS, StepCosts, quantile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from atom_lite.chunking.calibrator import StepSample
    from atom_lite.chunking.controller import ModelReport
    from atom_lite.chunking.latency_model import LatencyModel
    from atom_lite.messages import StepResult, StepTimes
    from atom_lite.scheduler.limits import SchedulerLimits

FEWEST_STEPS = 8  # before which nothing is said about the model
FACTOR_BOUNDS = (0.5, 2.0)
# A fit states the median error of many steps; that of a few recent ones scatters about it.
_STATED_ERRORS = 2.0
_LEAST_ERROR = 0.2
_TRUSTED_AGAIN = 0.8  # of the error at which the model was given up
_UNKNOWN_TOKEN_SECONDS = 1e-3


class Forecast:
    """Predicts steps, and compares with what they took.

    Args:
        report: asked for the models of now; None while there are none.
    """

    def __init__(self, report: Callable[[], ModelReport | None]) -> None:
        self._report = report
        self.costs = StepCosts()
        self._untimed: dict[int, tuple[StepSample, float]] = {}  # step -> contents, predicted
        self._in_flight: dict[int, float] = {}  # step -> expected seconds
        self._ratios: deque[float] = deque(maxlen=RECENT_STEPS)
        self._state: str | None = None
        self._notices: list[Notice] = []
        self.factor = 1.0  # on predictions, so that nine in ten recent steps kept to them
        self.error: float | None = None  # median, relative; what one factor cannot mend

    # ------------------------------------------------------------ what steps do

    def launched(self, step_id: int, contents: StepSample) -> None:
        """A step goes out to the stages."""
        report = self._report()
        predicted = 0.0 if report is None else self._predict(report.models, contents)
        self._untimed[step_id] = (contents, predicted)
        prefill = contents.new_tokens * (self.costs.token_seconds or 0.0)
        measured = self.costs.decode_step_seconds + prefill
        self._in_flight[step_id] = predicted * self.factor if predicted else measured

    def landed(self, result: StepResult) -> None:
        """A step's result is home, with the times that have become known."""
        self._in_flight.pop(result.step_id, None)
        for times in result.times:
            self._take(times)

    @property
    def seconds_in_flight(self) -> float:
        """What the slowest stage will take for all steps that are under way."""
        return sum(self._in_flight.values())

    @property
    def is_idle(self) -> bool:
        """Whether no step is under way."""
        return not self._in_flight

    # ------------------------------------------------------------ what the policy asks

    def models(self) -> Sequence[LatencyModel] | None:
        """The models to size with; None where there are none that can be believed."""
        report = self._report()
        if report is None:
            self._enter("static", "there is no latency model yet")
            return None
        most = max(_LEAST_ERROR, _STATED_ERRORS * report.stated_error)
        if self._state == "off":
            most *= _TRUSTED_AGAIN
        if self.error is not None and self.error > most:
            stated = f"{self.error:.0%}, and its fit states {report.stated_error:.0%}"
            self._enter("off", f"the latency model is off by {stated}")
            return None
        self._enter("model", "")
        return report.models

    def prefill_seconds(self, tokens: int) -> float:
        """About how long a prompt takes that has the stages to itself."""
        report = self._report()
        if report is None:
            return tokens * (self.costs.token_seconds or _UNKNOWN_TOKEN_SECONDS)
        return max(model.predict((Chunk(0, tokens),)) for model in report.models)

    def take_notices(self) -> list[Notice]:
        """Lines for the log since the last call."""
        notices, self._notices = self._notices, []
        return notices

    # ------------------------------------------------------------ inside

    def _take(self, times: StepTimes) -> None:
        """What a step took; these come in the order of steps, and not of each."""
        while self._untimed and (oldest := next(iter(self._untimed))) < times.step_id:
            del self._untimed[oldest]
        known = self._untimed.pop(times.step_id, None)
        if known is None:
            return
        contents, predicted = known
        *others, last = times.stage_seconds
        seconds = max([*others, last + times.draw_seconds])
        self.costs.add(contents, seconds)
        if predicted > 0.0 and contents.chunks and contents.decode_rows:
            self._compare(seconds / predicted)

    def _compare(self, ratio: float) -> None:
        self._ratios.append(ratio)
        if len(self._ratios) < FEWEST_STEPS:
            return
        low, high = FACTOR_BOUNDS
        self.factor = min(high, max(low, quantile(self._ratios, CAUTIOUS_SHARE)))
        centre = min(high, max(low, quantile(self._ratios, 0.5)))
        self.error = quantile([abs(r / centre - 1.0) for r in self._ratios], 0.5)

    def _enter(self, state: str, why: str) -> None:
        if state == self._state:
            return
        self._state = state
        if state == "model":
            text = "Objectives: prefill chunks beside streams are sized by the latency model"
            self._notices.append(Notice("info", text))
        else:
            text = f"Objectives: prefill chunks beside streams keep to a static budget: {why}"
            self._notices.append(Notice("warning" if state == "off" else "info", text))

    def _predict(self, models: Sequence[LatencyModel], contents: StepSample) -> float:
        return max(
            model.predict(
                contents.chunks,
                decode_rows=contents.decode_rows,
                decode_context_tokens=contents.decode_context_tokens,
            )
            for model in models
        )


def step_budget(
    limits: SchedulerLimits, forecast: Forecast | None, num_streams: int, num_decodes: int
) -> int:
    """Tokens of a step.

    `decode_step_tokens` while any sequence decodes (in this step or, in a pipeline, in another in
    flight: a huge prefill would stall it all the same), else `prefill_step_tokens`. Where the
    budget follows the load (`auto_budget`), it is beside streams the worth of the TBT objective;
    over stages a stream waits for a step on each.

    Args:
        limits: of the scheduler.
        forecast: of its steps; None where they are not watched.
        num_streams: sequences that decode; one whose last token is in flight is stalled by nothing.
        num_decodes: most of them that the step takes.
    """
    if not num_streams:
        return limits.prefill_step_tokens
    tbt = limits.objectives.tbt_seconds
    if not limits.auto_budget or forecast is None or tbt is None:
        return limits.decode_step_tokens
    seconds = tbt / limits.pipeline_depth
    tokens = forecast.costs.static_tokens(seconds, unknown=limits.least_chunk_tokens)
    return min(limits.decode_step_tokens, num_decodes + tokens)
