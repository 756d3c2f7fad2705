import time

import pytest
import torch

from atom_lite.worker.forward_timer import MAX_PENDING, EventTimer, WallTimer, timer_for
from tests.fakes.device import Device


def check_timer_brackets_the_work(timer, work):
    before = time.perf_counter()
    timer.start(7)
    work()
    timer.stop()
    known = timer.take()
    while not known:
        known = timer.take()
    assert [times.step_id for times in known] == [7]
    (seconds,) = known[0].stage_seconds
    assert 0.0 < seconds < time.perf_counter() - before
    assert timer.take() == []


def test_wall_timer_measures_what_lies_between_start_and_stop():
    check_timer_brackets_the_work(
        WallTimer(), lambda: torch.randn(200, 200) @ torch.randn(200, 200)
    )


def test_on_a_cpu_a_time_is_known_as_soon_as_the_model_returns():
    timer = WallTimer()
    timer.start(1)
    timer.stop()
    assert [times.step_id for times in timer.take()] == [1]


def test_drawing_is_timed_apart_from_the_layers():
    timer = WallTimer()
    timer.start(1)
    timer.stop()
    before = time.perf_counter()
    timer.stop_draw()
    (known,) = timer.take()
    assert 0.0 < known.draw_seconds < time.perf_counter() - before + known.draw_seconds
    timer.start(2)
    timer.stop()
    assert timer.take()[0].draw_seconds == 0.0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_event_timer_measures_what_lies_between_start_and_stop():
    device = torch.device("cuda")
    check_timer_brackets_the_work(
        timer_for(device),
        lambda: torch.randn(2000, 2000, device=device).matmul(torch.eye(2000, device=device)),
    )


def run_steps(timer, *step_ids):
    for step_id in step_ids:
        timer.start(step_id)
        timer.stop()


def test_atom_37_a_timing_polls_the_device_and_never_waits_for_it(monkeypatch):
    def fail(*args):
        raise AssertionError("a timing waited for the device")

    monkeypatch.setattr(torch.cuda, "synchronize", fail)
    monkeypatch.setattr(time, "sleep", fail)
    device = Device()
    timer = EventTimer(device.make_event)
    run_steps(timer, 1)
    assert timer.take() == []
    device.num_passed = 1  # has begun, not ended
    assert timer.take() == []
    device.num_passed = 2
    (known,) = timer.take()
    assert (known.step_id, known.stage_seconds) == (1, [0.125])
    assert timer.take() == []


def test_times_that_were_not_ready_come_with_those_of_a_later_step():
    device = Device()
    timer = EventTimer(device.make_event)
    run_steps(timer, 1, 2)
    assert timer.take() == []
    run_steps(timer, 3)
    device.num_passed = 4
    assert [times.step_id for times in timer.take()] == [1, 2]
    device.num_passed = 6
    assert [times.step_id for times in timer.take()] == [3]


def test_atom_37_at_most_eight_timings_are_pending_and_the_next_step_goes_untimed():
    device = Device()
    timer = EventTimer(device.make_event)
    run_steps(timer, *range(MAX_PENDING + 1))
    assert device.num_recorded == 2 * MAX_PENDING == 16
    device.num_passed = device.num_recorded
    assert [times.step_id for times in timer.take()] == list(range(MAX_PENDING))
    run_steps(timer, 20)
    device.num_passed = device.num_recorded
    assert [times.step_id for times in timer.take()] == [20]


def test_a_time_is_known_once_the_drawing_has_passed_too():
    device = Device()
    timer = EventTimer(device.make_event)
    run_steps(timer, 1)
    timer.stop_draw()
    device.num_passed = 2  # the layers have been passed
    assert timer.take() == []
    device.num_passed = 3
    (known,) = timer.take()
    assert (known.stage_seconds, known.draw_seconds) == ([0.125], 0.125)
    run_steps(timer, 2)
    device.num_passed = device.num_recorded
    assert timer.take()[0].draw_seconds == 0.0


def test_events_are_used_again():
    device = Device()
    timer = EventTimer(device.make_event)
    for step_id in range(100):
        run_steps(timer, step_id)
        device.num_passed = device.num_recorded
        assert [times.step_id for times in timer.take()] == [step_id]
    assert len(device.events) == 3


def test_cpu_gets_the_wall_timer():
    assert isinstance(timer_for(torch.device("cpu")), WallTimer)
