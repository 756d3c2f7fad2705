"""Whether the machine has become faster or slower than its latency model says.

Two-sided cumulative sum of the log of measured over predicted, in units of the fit's own spread:
noise that the fit knew of averages out, a lasting shift adds up. With the numbers below a false
alarm comes about every 50,000 steps and a shift of one sigma is found in some 20; a false alarm
costs one refit. Pure; runs in the head process. Source: Page, Biometrika 1954.
"""

from __future__ import annotations

import math

SLACK_SIGMAS = 0.5
ALARM_SIGMAS = 10.0
CLIP_SIGMAS = 3.0  # one straggler must not be an alarm
LEAST_SIGMA = 0.02


class DriftDetector:
    """One stage's measured against predicted times."""

    def __init__(self, sigma: float) -> None:
        """`sigma`: relative spread of the accepted fit's residuals."""
        self._sigma = max(sigma, LEAST_SIGMA)
        self._slower = 0.0
        self._faster = 0.0

    def observe(self, measured_seconds: float, predicted_seconds: float) -> bool:
        """Note a step; True once the shift is certain."""
        if measured_seconds <= 0.0 or predicted_seconds <= 0.0:
            return False
        shift = math.log(measured_seconds / predicted_seconds) / self._sigma
        shift = min(max(shift, -CLIP_SIGMAS), CLIP_SIGMAS)
        self._slower = max(0.0, self._slower + shift - SLACK_SIGMAS)
        self._faster = max(0.0, self._faster - shift - SLACK_SIGMAS)
        return max(self._slower, self._faster) > ALARM_SIGMAS
