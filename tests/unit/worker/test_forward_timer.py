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
        EventTimer(device),
        lambda: torch.randn(2000, 2000, device=device).matmul(torch.eye(2000, device=device)),
    )


def test_cpu_gets_the_wall_timer():
    assert isinstance(timer_for(torch.device("cpu")), WallTimer)
