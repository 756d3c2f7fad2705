"""Lets processes in the background run a part of the time, where others want the cores.

For the grammar compiler's children. Low priority alone does not protect a decode step: the engine's
threads sleep and wake hundreds of times in it, and under a kernel that preempts lazily each wake
waits for up to a tick behind whatever runs, however low its priority (steps of 33 ms took 160
beside one process of SCHED_IDLE). So they are stopped in turns and run a third of the time, unless
a whole core was idle while they were stopped.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

RUN_SECONDS = 0.03
STOP_SECONDS = 0.06
RUN_BESIDE_AN_IDLE_CORE_SECONDS = 0.5
_IDLE_CORES = 0.8  # of a core counts as one: the system counts in ticks of 10 ms


def idle_seconds() -> float:
    """Seconds that the machine's cores have been idle, added up."""
    return float(psutil.cpu_times().idle)


class Pacing:
    """Stops and continues processes in turns.

    Args:
        idle: gives the idle seconds of all cores so far.
        clock: gives the time, in seconds.
    """

    def __init__(
        self,
        idle: Callable[[], float] = idle_seconds,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._idle, self._clock = idle, clock
        self._pids: set[int] = set()
        self._is_stopped = False
        self._changed_at = self._next_change = 0.0
        self._idle_before = 0.0

    def add(self, pid: int) -> None:
        """Pace this process, a child of this one that is not reaped, until `remove`."""
        if not self._pids:
            self._stop_or_continue(stop=False, seconds=RUN_SECONDS)
        self._pids.add(pid)
        _run_when_idle(pid)
        if self._is_stopped:
            os.kill(pid, signal.SIGSTOP)

    def remove(self, pid: int) -> None:
        """Forget a process, paced or not, that was or is being killed."""
        self._pids.discard(pid)

    def seconds_to_next_turn(self) -> float | None:
        """Time until `turn` has something to do; None where nothing is paced."""
        return max(0.0, self._next_change - self._clock()) if self._pids else None

    def turn(self) -> None:
        """Stop or continue, where it is time."""
        if not self._pids or self._clock() < self._next_change:
            return
        if not self._is_stopped:
            self._stop_or_continue(stop=True, seconds=STOP_SECONDS)
            return
        idle_cores = (self._idle() - self._idle_before) / (self._clock() - self._changed_at)
        is_free = idle_cores >= _IDLE_CORES
        seconds = RUN_BESIDE_AN_IDLE_CORE_SECONDS if is_free else RUN_SECONDS
        self._stop_or_continue(stop=False, seconds=seconds)

    def _stop_or_continue(self, *, stop: bool, seconds: float) -> None:
        self._is_stopped = stop
        _signal(self._pids, signal.SIGSTOP if stop else signal.SIGCONT)
        self._changed_at = self._clock()
        self._next_change = self._changed_at + seconds
        self._idle_before = self._idle()


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        os.kill(pid, number)  # not reaped yet, so the number is still its own


def _run_when_idle(pid: int) -> None:
    if sys.platform == "linux":
        os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))
    else:
        os.setpriority(os.PRIO_PROCESS, pid, 19)
