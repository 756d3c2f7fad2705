"""How many prefills compete for the pipeline, now and over the last steps.

Resizing one prompt's chunks changes how full the pipeline is only while that prompt is its only
source of prefill work. Counting is harder than it looks: a request that cannot prefill is no
supply, and for a step or two between one request's end and the next one's admission every busy
server looks idle. Pure; runs in the head process. Source: ATOM's supply window.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

WINDOW_STEPS = 16


class PrefillSource(NamedTuple):
    """A partial prefill or a waiting request, as far as supply is concerned."""

    remaining_tokens: int
    is_aborted: bool = False
    waits_for_remote_kv: bool = False
    is_schedulable: bool = True  # False where it can never fit, or must wait for something else


def count_prefills(sources: Iterable[PrefillSource]) -> int:
    """Those that have prefill left and could run it."""
    return sum(
        1
        for source in sources
        if source.remaining_tokens > 0
        and not source.is_aborted
        and not source.waits_for_remote_kv
        and source.is_schedulable
    )


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
