"""What steps have cost lately, in plain averages: the budget of those who trust no model.

Why: a static budget is the worth of prefill in what the decodes leave of an objective. Both are
measured here as they come: how long steps of decodes alone take under the load of now, and what a
prompt's token adds to a step. The second is a high percentile, so that the budget is safe rather
than full. Pure; runs in the head process.

    budget = (objective - decode step) / seconds per prompt token

Source: Sarathi-Serve, OSDI'24, section 4.3, made a rule for run time.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from atom_lite.chunking.planner import DEFAULT_ALIGN_TOKENS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from atom_lite.chunking.calibrator import StepSample

RECENT_STEPS = 32
CAUTIOUS_SHARE = 0.9  # of recent steps, whose tokens cost no more
SAFE_SHARE = 0.9  # of an objective: the head's own turn, and decodes that take longer than half do
_LEAST_TOKEN_SECONDS = 1e-7  # keeps a budget finite where decodes take as long as mixed steps


class StepCosts:
    """Learns from the times of steps."""

    def __init__(self) -> None:
        self._decode_seconds: deque[float] = deque(maxlen=RECENT_STEPS)
        self._token_seconds: deque[float] = deque(maxlen=RECENT_STEPS)
        self.decode_step_seconds = 0.0
        self.token_seconds: float | None = None  # None before any prompt

    def add(self, contents: StepSample, seconds: float) -> None:
        """A step that has been timed, on the stage where it took longest."""
        new = contents.new_tokens
        if not new:
            self._decode_seconds.append(seconds)
            self.decode_step_seconds = quantile(self._decode_seconds, 0.5)
            return
        decodes = self.decode_step_seconds if contents.decode_rows else 0.0
        self._token_seconds.append(max(_LEAST_TOKEN_SECONDS, (seconds - decodes) / new))
        self.token_seconds = quantile(self._token_seconds, CAUTIOUS_SHARE)

    def prefill_tokens(self, seconds: float) -> int | None:
        """Prompt tokens that fit beside decodes into a step of so long; None before any prompt."""
        if self.token_seconds is None:
            return None
        return int(max(0.0, seconds - self.decode_step_seconds) / self.token_seconds)

    def static_tokens(self, seconds: float, unknown: int) -> int:
        """The same as a budget: whole tiles, at least one; `unknown` before any prompt."""
        tokens = self.prefill_tokens(SAFE_SHARE * seconds)
        tiles = (unknown if tokens is None else tokens) // DEFAULT_ALIGN_TOKENS
        return max(1, tiles) * DEFAULT_ALIGN_TOKENS


def quantile(values: Iterable[float], share: float) -> float:
    """The value that this share of all does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
