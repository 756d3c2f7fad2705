"""How many prefills competed for the pipeline over the last steps.

Resizing one prompt's chunks changes how full the pipeline is only while that prompt is its only
source of prefill work. How many there are in a step the scheduler says, which counts nobody that
cannot start; but for a step or two between one request's end and the next one's admission every
busy server looks idle. Pure; runs in the head process. Source: ATOM's supply window.
"""

from __future__ import annotations

from collections import deque

WINDOW_STEPS = 16


class SolePrefillWindow:
    """Whether one prompt has been the only prefill work, over the last 16 scheduler steps."""

    def __init__(self) -> None:
        self._recent: deque[int] = deque(maxlen=WINDOW_STEPS)

    def observe(self, num_prefills: int) -> None:
        """Note a scheduler step."""
        self._recent.append(num_prefills)

    @property
    def is_sole(self) -> bool:
        """True while no step of the window saw two."""
        return max(self._recent, default=0) <= 1
