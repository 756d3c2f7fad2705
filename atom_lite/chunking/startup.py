"""The startup sweep as the engine drives it: which forward next, and what to do with its time.

ATOM's runs without attention, best of two per size, and needs all of its sizes. Ours attends to a
real prefix and stops when its time is used up; what is missing then comes from serving. A forward
that raises fails the start: that is the engine's business. Pure; head process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from atom_lite.chunking.calibrator import StepSample
from atom_lite.chunking.latency_model import Chunk
from atom_lite.chunking.sweep import TIMED_FORWARDS, prefix_sweep_shapes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from atom_lite.chunking.planner import PlanLimits
    from atom_lite.chunking.refusal import Notice

LIMIT_SECONDS = 2.0


class StartupSweep(Protocol):
    """Forwards to run before the first request, one at a time, on all stages."""

    @property
    def is_attention_free(self) -> bool:
        """Whether the forwards skip attention; otherwise the prefix must be attended to."""
        ...

    def next_shape(self) -> Chunk | None:
        """The next forward's shape, with random token ids; None ends the sweep."""
        ...

    def finish_shape(self, stage_seconds: Sequence[float]) -> None:
        """Its time on each stage, the model call only."""
        ...

    def finish(self) -> list[Notice]:
        """Fit what was measured."""
        ...


class AtomStartup:
    """One warm-up, then every size twice; the better time counts, the head stage's only."""

    is_attention_free = True

    def __init__(
        self, sizes: Sequence[int], finish: Callable[[Sequence[int], list[float]], list[Notice]]
    ) -> None:
        """`finish` takes the sizes and their best times."""
        self._finish = finish
        self._runs = list(sizes[:1]) + [size for size in sizes for _ in range(TIMED_FORWARDS)]
        self._sizes = sizes
        self._done = 0
        self._best: dict[int, float] = {}

    def next_shape(self) -> Chunk | None:
        """Largest size first, no prefix."""
        return Chunk(0, self._runs[self._done]) if self._done < len(self._runs) else None

    def finish_shape(self, stage_seconds: Sequence[float]) -> None:
        """Keep the better time; the first run of all only warms up."""
        size = self._runs[self._done]
        if self._done > 0:
            self._best[size] = min(stage_seconds[0], self._best.get(size, stage_seconds[0]))
        self._done += 1

    def finish(self) -> list[Notice]:
        """Hand the times to the calibration."""
        return self._finish(self._sizes, [self._best[size] for size in self._sizes])


class PrefixStartup:
    """Shapes over real prefixes, most telling first, for at most two seconds."""

    is_attention_free = False

    def __init__(
        self,
        limits: PlanLimits,
        max_model_len: int,
        record: Callable[[StepSample], object],
        finish: Callable[[], list[Notice]],
    ) -> None:
        """`record` takes each timed forward, `finish` fits them."""
        shapes = prefix_sweep_shapes(limits.floor, limits.most, max_model_len)
        self._runs = shapes[:1] + shapes
        self._record = record
        self._finish = finish
        self._done = 0
        self._spent_seconds = 0.0
        self._longest_seconds = 0.0

    def next_shape(self) -> Chunk | None:
        """The next shape, unless one more forward could break the time limit."""
        if self._done >= len(self._runs):
            return None
        if self._spent_seconds + self._longest_seconds > LIMIT_SECONDS:
            return None
        return self._runs[self._done]

    def finish_shape(self, stage_seconds: Sequence[float]) -> None:
        """Record a timed forward; the first run of all only warms up."""
        seconds = sum(stage_seconds)
        self._spent_seconds += seconds
        if self._done > 0:
            self._longest_seconds = max(self._longest_seconds, seconds)
            self._record(StepSample((self._runs[self._done],), tuple(stage_seconds)))
        self._done += 1

    def finish(self) -> list[Notice]:
        """Fit; a refusal only means that serving has to bring the rest."""
        return self._finish() if self._done > 1 else []
