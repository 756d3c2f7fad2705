"""When a sequence's next token is due, by its objectives.

Why: an objective is a gap, but what a client's player or reader feels is whether the stream is
behind. So a token that comes early leaves its slack to those after it, and a late one starts the
count anew: Etalon's rule, which in terms of points in time is one maximum.

    due of the first token = arrival + TTFT objective
    due of the next one    = max(due, now) + TBT objective      when a token has come at `now`

Pure arithmetic over seconds; runs in the head process. Source: Etalon (fluidity index), section 4.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from atom_lite.config_scheduling import NO_OBJECTIVES, Objectives

if TYPE_CHECKING:
    from atom_lite.messages import SubmitSequence


class Deadline:
    """Of one sequence: when its next token is due; infinity where nothing is promised."""

    __slots__ = ("due_seconds", "num_late", "objectives")

    def __init__(self, objectives: Objectives, arrival_seconds: float) -> None:
        self.objectives = objectives
        self.num_late = 0
        ttft = objectives.ttft_seconds
        self.due_seconds = math.inf if ttft is None else arrival_seconds + ttft

    def token(self, now: float) -> None:
        """A token has come."""
        self.num_late += now > self.due_seconds
        tbt = self.objectives.tbt_seconds
        if tbt is None:
            self.due_seconds = math.inf
        elif self.due_seconds == math.inf:
            self.due_seconds = now + tbt  # the first token was promised nothing
        else:
            self.due_seconds = max(self.due_seconds, now) + tbt


def deadline_of(message: SubmitSequence, default: Objectives) -> Deadline:
    """Of a new sequence's first token: by its own objectives, or else the server's."""
    own = Objectives(ttft_seconds=message.ttft_slo_seconds, tbt_seconds=message.tbt_slo_seconds)
    return Deadline(own.over(default), message.arrival_time)


def no_deadline() -> Deadline:
    """Of a sequence that is promised nothing."""
    return Deadline(NO_OBJECTIVES, 0.0)
