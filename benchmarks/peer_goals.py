"""What this server is held to beside its peers, figure by figure. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.paired import Ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """One requirement.

    Args:
        setup: name of the setup.
        figure: name of the measure.
        least: how many times better than the best peer of the same run; 1 is no worse.
        limit: absolute bound instead of a ratio.
        aim: what is hoped for, on two cores with AVX512-BF16.
    """

    setup: str
    figure: str
    least: float | None = 1.0
    limit: float | None = None
    aim: float | None = None

    def is_met(self, ours: float | None, ratio: Ratio | None) -> bool | None:
        """None where it was not measured. All limits are upper ones."""
        if self.limit is not None:
            return None if ours is None else ours < self.limit
        if ratio is None or self.least is None:
            return None
        return ratio.median >= self.least


def _single(tokens: int, ttft: float, decode: float | None = None) -> tuple[Goal, ...]:
    label = f"single, {tokens} prompt tokens"
    first = Goal(setup="plain", figure=f"{label}: TTFT p50, s", aim=ttft)
    if decode is None:
        return (first,)
    return first, Goal(setup="plain", figure=f"{label}: decode tokens/s", aim=decode)


GOALS = (
    *_single(128, 0.05, 140.0),
    *_single(1024, 0.32),
    *_single(4096, 2.0, 85.0),
    *_single(7500, 5.0),
    Goal(setup="quantized", figure="single, 128 prompt tokens: decode tokens/s", aim=200.0),
    Goal(setup="plain", figure="concurrency, 8 at once: output tokens/s", least=1.2, aim=450.0),
    Goal(setup="plain", figure="concurrency, 32 at once: output tokens/s", least=1.2, aim=900.0),
    Goal(setup="plain", figure="concurrency, 32 at once: ITL p99, s", limit=0.25, aim=0.1),
    Goal(setup="budget", figure="interference, streams, during: ITL p99, s", aim=0.3),
    Goal(setup="budget", figure="interference, 6000-token prompts: TTFT p50, s", aim=8.0),
    Goal(setup="plain", figure="shared-prefix, rest: TTFT p50, s", aim=0.06),
    Goal(setup="plain", figure="peak memory, MB", aim=2000.0),
)


def goal_of(setup: str, figure: str) -> Goal | None:
    """The goal of a figure, if it has one."""
    return next((g for g in GOALS if (g.setup, g.figure) == (setup, figure)), None)
