from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import psutil
import pytest

from atom_lite.engine.grammar_pacing import (
    RUN_BESIDE_AN_IDLE_CORE_SECONDS,
    RUN_SECONDS,
    STOP_SECONDS,
    Pacing,
)
from tests.live_servers import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

NOT_YET = 0.001


class Machine:
    """A clock and the idle seconds of its cores, set by the test."""

    def __init__(self) -> None:
        self.now = 100.0
        self.idle = 7.0

    def passes(self, seconds: float, *, idle_cores: float = 0.0) -> None:
        self.now += seconds
        self.idle += idle_cores * seconds


@pytest.fixture
def child() -> Iterator[psutil.Process]:
    with subprocess.Popen(
        [sys.executable, "-c", "while True: pass"], stdout=subprocess.DEVNULL
    ) as process:
        yield psutil.Process(process.pid)
        process.kill()


def expect(child: psutil.Process, *, stopped: bool) -> None:
    wait_until(
        lambda: (child.status() == psutil.STATUS_STOPPED) is stopped, 10, f"stopped is {stopped}"
    )


def paced(machine: Machine, *children: psutil.Process) -> Pacing:
    pacing = Pacing(idle=lambda: machine.idle, clock=lambda: machine.now)
    for child in children:
        pacing.add(child.pid)
    return pacing


def test_a_process_runs_and_is_stopped_in_turns(child: psutil.Process) -> None:
    machine = Machine()
    pacing = paced(machine, child)
    for _ in range(2):
        expect(child, stopped=False)
        assert pacing.seconds_to_next_turn() == pytest.approx(RUN_SECONDS)
        machine.passes(RUN_SECONDS - NOT_YET)
        pacing.turn()
        expect(child, stopped=False)
        machine.passes(2 * NOT_YET)
        pacing.turn()
        expect(child, stopped=True)
        assert pacing.seconds_to_next_turn() == pytest.approx(STOP_SECONDS)
        machine.passes(STOP_SECONDS + NOT_YET, idle_cores=0.5)
        pacing.turn()


def test_beside_an_idle_core_it_runs_for_longer(child: psutil.Process) -> None:
    machine = Machine()
    pacing = paced(machine, child)
    machine.passes(RUN_SECONDS)
    pacing.turn()
    machine.passes(STOP_SECONDS, idle_cores=1.0)
    pacing.turn()
    expect(child, stopped=False)
    assert pacing.seconds_to_next_turn() == pytest.approx(RUN_BESIDE_AN_IDLE_CORE_SECONDS)


def test_one_that_comes_while_others_are_stopped_is_stopped_too(child: psutil.Process) -> None:
    machine = Machine()
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        pacing = paced(machine, child)
        machine.passes(RUN_SECONDS)
        pacing.turn()
        pacing.add(other.pid)
        expect(psutil.Process(other.pid), stopped=True)
        other.kill()
        pacing.remove(other.pid)
    machine.passes(STOP_SECONDS)
    pacing.turn()  # does not touch the one that is gone
    expect(child, stopped=False)


def test_nothing_paced_asks_for_no_turn(child: psutil.Process) -> None:
    pacing = paced(Machine(), child)
    pacing.remove(child.pid)
    assert pacing.seconds_to_next_turn() is None
    pacing.turn()
    expect(child, stopped=False)
