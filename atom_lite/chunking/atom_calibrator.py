"""ATOM's calibration, start to end: sweep, samples, polls, gates, and when it gives up.

    off        told why at start: a floor that leaves nothing to solve, too few sizes, ...
    profiling  the startup sweep runs
    calibrating  sole prefills alternate two sizes and are timed on the head stage
    installed  model-sized chunks; sampling stops for good
    ignored    a valid model that predicts no useful shrink; chunking stays fixed
    gave_up    no model will come; chunking stays fixed

Two deviations from ATOM's code, both where it is fooled: a new request is known by its id, not by a
prefix that shrank (a prefix-cache hit looks like one going on), and a constant that turns negative
only after the prefix column was dropped is refitted too.

Pure; runs in the head process. Source: ROCm/ATOM, dynamic_chunking.py; pull request 2007.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from atom_lite.chunking.fit_atom import (
    MIN_CHUNK_SIZES,
    MIN_PROFILE_SIZES,
    ShapeTimings,
    StartupTerms,
    fit_attention,
    fit_startup,
)
from atom_lite.chunking.latency_model import MILLISECONDS_PER_SECOND, LatencyModel
from atom_lite.chunking.planners.atom import AtomSettings, shrinks_usefully
from atom_lite.chunking.refusal import FitRefused, Notice
from atom_lite.chunking.sweep import atom_max_chunk, atom_startup_sizes
from atom_lite.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

AtomState: TypeAlias = Literal["off", "profiling", "calibrating", "installed", "ignored", "gave_up"]

DISCARDED_REQUESTS = 1  # autotuning makes the first one up to 60 times slow
MAX_REJECTED_FITS = 8
MAX_REQUESTS_WITHOUT_DIVERSITY = 8
MAX_POLLS_WITHOUT_SAMPLES = 16
POLL_STEPS = 32


class AtomCalibrator:
    """The state machine; `model` is set once it is installed."""

    def __init__(self, settings: AtomSettings, *, num_stages: int) -> None:
        """Start in `profiling`, or `off` with the reason.

        Raises:
            ConfigError: one pipeline stage; there is nothing to keep busy.
        """
        if num_stages < 2:
            raise ConfigError(
                f"dynamic chunking needs --pipeline-parallel-size of at least 2, got {num_stages}"
            )
        self._settings = settings
        self._timings = ShapeTimings()
        self._startup: StartupTerms | None = None
        self._last_sequence_id: int | None = None
        self._num_samples = 0
        self._num_requests = 0
        self._num_polls = 0
        self._num_rejected = 0
        self._steps_to_poll = POLL_STEPS
        self._has_fresh = False
        self.model: LatencyModel | None = None
        self.state: AtomState = "profiling"
        self.reason = "the startup sweep runs"
        refusal = _refusal(settings)
        if refusal is not None:
            self.state, self.reason = "off", refusal

    @property
    def needs_acknowledgement(self) -> bool:
        """Whether the head waits for the last stage to acknowledge each middle chunk.

        The flag of a batch is this at the time it is scheduled, and travels with it.
        """
        return self.state in ("calibrating", "installed")

    def start_notices(self) -> list[Notice]:
        """What the log has to say before anything ran: why the feature is off."""
        if self.state != "off":
            return []
        return [Notice("warning", f"disabling dynamic chunking because {self.reason}")]

    def startup_sizes(self) -> list[int]:
        """Sizes of the startup sweep's attention-free forwards, largest first; empty when off.

        Every stage runs the same ones: they follow from flags alone.
        """
        return [] if self.state == "off" else _grid(self._settings)

    def finish_startup(self, chunk_sizes: Sequence[int], seconds: Sequence[float]) -> list[Notice]:
        """Take the sweep's best time per size, measured on the head stage."""
        try:
            self._startup = fit_startup(chunk_sizes, seconds)
        except FitRefused as refused:
            return self._stop("off", "disabling dynamic chunking because ", refused.message)
        self.state = "calibrating"
        self.reason = "waiting for real prefills"
        b = self._startup.linear_seconds_per_token * MILLISECONDS_PER_SECOND
        c = self._startup.constant_seconds * MILLISECONDS_PER_SECOND
        return [
            Notice(
                "info",
                f"dynamic chunking chunk overhead b={b:.3e} c={c:.3e}; attention terms will be "
                "calibrated from the head stage's real prefills",
            )
        ]

    def wants_sample(self, *, num_sequences: int, num_prefills: int) -> bool:
        """Whether a step is worth timing: one sequence, and that a prefill."""
        return self.state == "calibrating" and num_sequences == 1 and num_prefills == 1

    def add_sample(
        self, *, sequence_id: int, prefix_tokens: int, chunk_tokens: int, seconds: float
    ) -> None:
        """Take the time of a real prefill forward on the head stage."""
        if self.state != "calibrating":
            return
        self._num_samples += 1
        if sequence_id != self._last_sequence_id:
            self._num_requests += 1
            self._last_sequence_id = sequence_id
        if self._num_requests > DISCARDED_REQUESTS:
            self._has_fresh |= self._timings.add(prefix_tokens, chunk_tokens, seconds)

    def end_step(self) -> list[Notice]:
        """Count a step of the head; every 32nd polls."""
        if self.state != "calibrating":
            return []
        self._steps_to_poll -= 1
        if self._steps_to_poll > 0:
            return []
        self._steps_to_poll = POLL_STEPS
        return self.poll()

    def poll(self) -> list[Notice]:
        """Give up, fit, or say what is missing."""
        if self.state != "calibrating":
            return []
        self._num_polls += 1
        if self._is_stalled():
            return self._give_up(
                f"with {self._num_requests} sampled requests, {self._timings.num_chunk_sizes} "
                f"chunk sizes, after {self._num_polls} polls"
            )
        if not self._timings.is_diverse_enough or not self._has_fresh:
            return [Notice("info", f"dynamic chunking still calibrating: {self._progress()}")]
        return self._fit()

    def _is_stalled(self) -> bool:
        if self._num_requests == 0:
            return self._num_polls >= MAX_POLLS_WITHOUT_SAMPLES
        return (
            self._num_requests >= MAX_REQUESTS_WITHOUT_DIVERSITY
            and self._timings.num_chunk_sizes < MIN_CHUNK_SIZES
        )

    def _progress(self) -> str:
        return (
            f"{self._num_samples} timed prefills, {self._timings.num_shapes} shapes, "
            f"{self._timings.num_prefixes} distinct prefixes, "
            f"{self._timings.num_chunk_sizes} chunk sizes"
        )

    def _fit(self) -> list[Notice]:
        assert self._startup is not None
        # Until a new timing comes, the same samples would only be refused again.
        self._has_fresh = False
        try:
            model = fit_attention(self._timings, self._startup)
        except FitRefused as refused:
            return self._reject(refused)
        if not shrinks_usefully(model, self._settings.budget_tokens):
            return self._stop(
                "ignored",
                f"Ignoring dynamic chunking calibration {model.describe()}: ",
                "it predicts no useful shrink",
            )
        self.model = model
        self.state = "installed"
        self.reason = (
            f"calibrated from {self._timings.num_shapes} real prefill shapes over "
            f"{self._timings.num_chunk_sizes} chunk sizes"
        )
        return [
            Notice("info", f"dynamic chunking {self.reason}: {model.describe()}"),
            Notice("info", f"Dynamic chunking latency model installed: {model.describe()}"),
        ]

    def _reject(self, refused: FitRefused) -> list[Notice]:
        self._num_rejected += 1
        self.reason = refused.message
        notices = [Notice("warning", f"dynamic chunking calibration: {refused.message}")]
        if self._num_rejected >= MAX_REJECTED_FITS:
            notices += self._give_up(
                f"after {MAX_REJECTED_FITS} rejected fits over {self._timings.num_shapes} shapes"
            )
        return notices

    def _give_up(self, why: str) -> list[Notice]:
        return self._stop(
            "gave_up",
            f"giving up on dynamic chunking calibration {why}; ",
            "chunking stays fixed",
        )

    def _stop(self, state: AtomState, prefix: str, reason: str) -> list[Notice]:
        self.state = state
        text = prefix + reason
        self.reason = reason if state == "off" else text
        return [Notice("warning", text)]


def _grid(settings: AtomSettings) -> list[int]:
    align = settings.align_tokens
    most = atom_max_chunk(settings.budget_tokens, settings.max_model_len, align)
    return atom_startup_sizes(align, most) if most >= align else []


def _refusal(settings: AtomSettings) -> str | None:
    """Why the feature is off from the start, or None."""
    if settings.min_chunk_tokens >= settings.budget_tokens:
        return (
            f"--dynamic-chunking-min-chunk-size is {settings.min_chunk_tokens}, must be below "
            f"--max-num-batched-tokens, which is {settings.budget_tokens}"
        )
    sizes = _grid(settings)
    if len(sizes) < MIN_PROFILE_SIZES:
        return (
            f"Dynamic chunking needs at least {MIN_PROFILE_SIZES} aligned profiling lengths, got "
            f"{len(sizes)} from a budget of {settings.budget_tokens} tokens at an alignment of "
            f"{settings.align_tokens}"
        )
    return None
