import time

import pytest
import torch

from atom_lite.worker.forward_timer import EventTimer, WallTimer, timer_for


def check_timer_brackets_the_work(timer, work):
    before = time.perf_counter()
    timer.start()
    work()
    timer.stop()
    seconds = timer.seconds()
    assert 0.0 < seconds < time.perf_counter() - before
    assert timer.seconds() == seconds


def test_wall_timer_measures_what_lies_between_start_and_stop():
    check_timer_brackets_the_work(
        WallTimer(), lambda: torch.randn(200, 200) @ torch.randn(200, 200)
    )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_event_timer_measures_what_lies_between_start_and_stop():
    device = torch.device("cuda")
    check_timer_brackets_the_work(
        timer_for(device),
        lambda: torch.randn(2000, 2000, device=device).matmul(torch.eye(2000, device=device)),
    )


class CountdownEvent:
    """An event of a device that needs three polls to get there."""

    def __init__(self) -> None:
        self.polls_left = 0

    def record(self) -> None:
        self.polls_left = 3

    def query(self) -> bool:
        self.polls_left = max(0, self.polls_left - 1)
        return self.polls_left == 0

    def elapsed_time(self, end: "CountdownEvent") -> float:
        assert end.polls_left == 0, "an event is read before it has passed"
        return 250.0

    def synchronize(self) -> None:
        raise AssertionError("a timing synchronised the device")


def test_atom_37_a_timing_polls_the_device_and_never_synchronises_it(monkeypatch):
    def synchronize() -> None:
        raise AssertionError("a timing synchronised the device")

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    timer = EventTimer(CountdownEvent)
    timer.start()
    timer.stop()
    assert timer.seconds() == 0.25


def test_cpu_gets_the_wall_timer():
    assert isinstance(timer_for(torch.device("cpu")), WallTimer)
