"""Pairs the results of the last stage with the times of the stages before it, at the head.

Both kinds of link use it. Each stage talks to the head over a connection of its own, so a result
and what a middle stage says of the same step may come in any order. A middle stage speaks before it
passes the hidden states on, so its word is there first in all but a hiccup of its connection; then
the result waits for it, and later results with it: what the head gets is whole and in order.

Filled by the connections' threads, emptied by the head's. Holds as many steps as are in flight.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

from atom_lite.parallel.link import PipelineError, Returned

if TYPE_CHECKING:
    from collections.abc import Callable

    from atom_lite.parallel.topology import Topology


class Returns:
    """Results on their way to the head.

    Args:
        topology: of the run; says which stages' times each result needs.
        wake: called, on the thread that brought the last missing part, when a result is complete.
    """

    def __init__(self, topology: Topology, wake: Callable[[], None]) -> None:
        self._last_stage = topology.num_stages - 1
        self._wake = wake
        self._lock = threading.Lock()
        self._results: deque[tuple[int, bytes]] = deque()
        self._times: dict[int, deque[tuple[int, bytes]]] = {
            stage: deque() for stage in topology.middle_stages
        }
        self._last_result = -1
        self._last_times = dict.fromkeys(topology.middle_stages, -1)

    def put_result(self, step_id: int, body: bytes) -> None:
        """The last stage has ended a step.

        Raises:
            PipelineError: the step came before, or a later one did.
        """
        with self._lock:
            if step_id <= self._last_result:
                raise PipelineError(f"result {step_id} came after result {self._last_result}")
            self._last_result = step_id
            self._results.append((step_id, body))
            complete = self._is_complete()
        if complete:
            self._wake()

    def put_times(self, stage: int, step_id: int, body: bytes) -> None:
        """A middle stage has ended its part of a step and says which times it knows.

        Raises:
            PipelineError: the step came before, or a later one did.
        """
        with self._lock:
            last = self._last_times[stage]
            if step_id <= last:
                raise PipelineError(f"times of step {step_id} came after those of step {last}")
            self._last_times[stage] = step_id
            self._times[stage].append((step_id, body))
            complete = self._is_complete()
        if complete:
            self._wake()

    def take(self) -> list[Returned]:
        """What is complete, in order.

        Raises:
            PipelineError: a stage ended another step than the next.
        """
        taken = []
        with self._lock:
            while self._is_complete():
                step_id, body = self._results.popleft()
                parts = [self._times[stage].popleft() for stage in self._times]
                if any(part_id != step_id for part_id, _ in parts):
                    raise PipelineError(f"result {step_id} came with times of other steps")
                taken.append(Returned(step_id, body, [times for _, times in parts]))
        return taken

    def stage_of(self, step_id: int) -> int:
        """The first stage after stage 0 whose part of a step has not come."""
        unended = (stage for stage, last in self._last_times.items() if last < step_id)
        return next(unended, self._last_stage)

    def _is_complete(self) -> bool:
        return bool(self._results) and all(self._times.values())
