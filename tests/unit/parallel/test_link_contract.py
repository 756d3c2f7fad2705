"""The contract of HeadLink, StageLink and HiddenLink, kept by every implementation alike."""

from __future__ import annotations

import random
import threading
from functools import partial
from typing import TYPE_CHECKING

import pytest
import torch

from atom_lite.parallel.link import PipelineError
from atom_lite.parallel.wire import INLINE_BYTES
from tests.unit.parallel.link_sets import LinkSet, distributed_links, memory_links

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


MAKERS: dict[str, Callable[..., LinkSet]] = {
    "memory": memory_links,
    "gloo": distributed_links,
    "shared memory": partial(distributed_links, is_one_host=True),
}


@pytest.fixture(params=MAKERS)
def make(request: pytest.FixtureRequest) -> Iterator[Callable[..., LinkSet]]:
    made: list[LinkSet] = []

    def make_links(*args: int, **options: int) -> LinkSet:
        links = MAKERS[request.param](*args, **options)
        made.append(links)
        return links

    yield make_links
    for links in made:
        links.close()


def in_thread(action: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    return thread


def test_plans_reach_every_rank_whole_and_in_order(make: Callable[..., LinkSet]) -> None:
    links = make(3)
    random_bytes = random.Random(1)
    sizes = [0, 1, INLINE_BYTES - 1, INLINE_BYTES, INLINE_BYTES + 1, 300_000]
    sizes += [random_bytes.randrange(200_000) for _ in range(20)]
    bodies = [random_bytes.randbytes(size) for size in sizes]
    for step_id, body in enumerate(bodies):
        links.head.send_plan(step_id, body)
    for stage in links.stages.values():
        for step_id, body in enumerate(bodies):
            assert stage.receive_plan() == (step_id, body)


def test_results_come_back_whole_and_in_order_and_wake_the_head(
    make: Callable[..., LinkSet],
) -> None:
    links = make(2)
    bodies = [b"", b"x", b"y" * 100_000, b"z" * INLINE_BYTES]
    for step_id, body in enumerate(bodies):
        links.stages[1].send_result(step_id * 3, body)
    assert links.results(4) == [(step_id * 3, body, []) for step_id, body in enumerate(bodies)]
    assert links.head.poll_results() == []


def test_plans_and_results_cross_freely(make: Callable[..., LinkSet]) -> None:
    links = make(2)
    count = 200

    def serve() -> None:
        for _ in range(count):
            plan = links.stages[1].receive_plan()
            assert plan is not None
            links.stages[1].send_result(*plan)

    thread = in_thread(serve)
    for step_id in range(count):
        links.head.send_plan(step_id, str(step_id).encode())
    assert links.results(count) == [(step, str(step).encode(), []) for step in range(count)]
    thread.join(10)


def test_a_result_brings_the_times_of_the_stages_between_in_their_order(
    make: Callable[..., LinkSet],
) -> None:
    links = make(4)
    for step_id in (3, 7):
        links.stages[2].send_times(step_id, b"of stage 2")
        links.stages[1].send_times(step_id, b"of stage 1")
        links.stages[3].send_result(step_id, b"body")
    told = [b"of stage 1", b"of stage 2"]
    assert links.results(2) == [(3, b"body", told), (7, b"body", told)]


def test_a_result_waits_for_a_stage_that_is_late_and_keeps_later_results_behind_it(
    make: Callable[..., LinkSet],
) -> None:
    links = make(3)
    links.stages[2].send_result(0, b"a")
    links.stages[2].send_result(1, b"b")
    assert not links.woken.wait(0.2)
    assert links.head.poll_results() == []
    links.stages[1].send_times(0, b"x")
    assert links.results(1) == [(0, b"a", [b"x"])]
    links.stages[1].send_times(1, b"")
    assert links.results(1) == [(1, b"b", [b""])]


def test_only_the_stages_between_send_times_and_in_order(make: Callable[..., LinkSet]) -> None:
    links = make(3)
    with pytest.raises(AssertionError):
        links.stages[2].send_times(0, b"")
    links.stages[1].send_times(1, b"")
    with pytest.raises(AssertionError):
        links.stages[1].send_times(1, b"")


def test_polling_never_waits(make: Callable[..., LinkSet]) -> None:
    assert make(2).head.poll_results() == []


def test_closing_the_head_ends_every_stage(make: Callable[..., LinkSet]) -> None:
    links = make(3)
    links.head.send_plan(0, b"last")
    thread = in_thread(links.head.close)
    for stage in links.stages.values():
        assert stage.receive_plan() == (0, b"last")
        assert stage.receive_plan() is None
        assert stage.receive_plan() is None
        stage.close()
    thread.join(10)
    assert not thread.is_alive()
    assert links.head.poll_results() == []


def test_closing_twice_does_no_harm(make: Callable[..., LinkSet]) -> None:
    links = make(2)
    links.close()
    links.close()


def test_a_reported_failure_raises_at_the_head(make: Callable[..., LinkSet]) -> None:
    links = make(3)
    links.stages[1].report_failure("ValueError: planted")
    assert links.woken.wait(10)
    with pytest.raises(PipelineError, match="stage 1 failed: ValueError: planted"):
        links.head.poll_results()
    with pytest.raises(PipelineError):  # and it stays so
        links.head.poll_results()


def test_results_before_a_failure_are_not_lost(make: Callable[..., LinkSet]) -> None:
    links = make(2)
    links.stages[1].send_result(0, b"done")
    links.stages[1].report_failure("planted")
    assert links.results(1) == [(0, b"done", [])]
    assert links.woken.wait(10)
    with pytest.raises(PipelineError, match="planted"):
        links.head.poll_results()


def test_a_stage_that_leaves_on_its_own_is_a_failure(make: Callable[..., LinkSet]) -> None:
    links = make(2)
    links.stages[1].close()
    assert links.woken.wait(10)
    with pytest.raises(PipelineError, match="stage 1"):
        links.head.poll_results()


def test_closing_a_stage_ends_its_own_wait(make: Callable[..., LinkSet]) -> None:
    links = make(2)
    plans: list[object] = []
    thread = in_thread(lambda: plans.append(links.stages[1].receive_plan()))
    links.stages[1].close()
    thread.join(10)
    assert plans == [None]


def test_a_survivor_is_ended_by_close_after_a_failure(make: Callable[..., LinkSet]) -> None:
    links = make(3)
    links.stages[2].report_failure("planted")
    assert links.woken.wait(10)
    thread = in_thread(links.head.close)
    assert links.stages[1].receive_plan() is None
    links.stages[1].close()
    links.stages[2].close()
    thread.join(20)
    assert not thread.is_alive()


def test_step_ids_must_increase(make: Callable[..., LinkSet]) -> None:
    links = make(2)
    links.head.send_plan(5, b"")
    links.stages[1].send_result(5, b"")
    links.hidden[0].send(5, torch.zeros(1))
    links.hidden[1].post_receive(5, (1,), torch.float32).wait()
    with pytest.raises(AssertionError):
        links.head.send_plan(5, b"")
    with pytest.raises(AssertionError):
        links.stages[1].send_result(4, b"")
    with pytest.raises(AssertionError):
        links.hidden[0].send(5, torch.zeros(1))
    with pytest.raises(AssertionError):
        links.hidden[1].post_receive(3, (1,), torch.float32)


def test_only_the_last_stage_returns_results(make: Callable[..., LinkSet]) -> None:
    with pytest.raises(AssertionError):
        make(3).stages[1].send_result(0, b"")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("posted_first", [True, False])
def test_hidden_states_arrive_bit_for_bit(
    make: Callable[..., LinkSet], dtype: torch.dtype, posted_first: bool
) -> None:
    links = make(3)
    shapes = [(1, 8), (512, 576), (7, 3), (1, 1), (0, 8)]
    bits = [torch.randint(-(2**15), 2**15, shape, dtype=torch.int16) for shape in shapes]
    sent = [b.view(dtype) if dtype.itemsize == 2 else b.to(dtype) for b in bits]
    receives = []
    for step_id, tensor in enumerate(sent):
        if posted_first:
            receives.append(links.hidden[1].post_receive(step_id, tuple(tensor.shape), dtype))
        thread = in_thread(partial(links.hidden[0].send, step_id, tensor))
        if not posted_first:
            receives.append(links.hidden[1].post_receive(step_id, tuple(tensor.shape), dtype))
        thread.join(10)
    for tensor, receive in zip(sent, receives, strict=True):
        got = receive.wait()
        assert torch.equal(got.view(torch.uint8), tensor.view(torch.uint8))


def test_many_receives_may_be_posted_ahead(make: Callable[..., LinkSet]) -> None:
    links = make(2, max_sends=2)
    receives = [links.hidden[1].post_receive(step, (4,), torch.float32) for step in range(20)]
    for step in range(20):
        links.hidden[0].send(step, torch.full((4,), float(step)))
    for step, receive in enumerate(receives):
        assert receive.wait().tolist() == [float(step)] * 4
        assert receive.wait().tolist() == [float(step)] * 4  # a second wait changes nothing


def test_sends_that_nobody_takes_are_bounded(make: Callable[..., LinkSet]) -> None:
    links = make(2, max_sends=2)
    for step in range(2):
        links.hidden[0].send(step, torch.full((4,), float(step)))  # returns at once
    third = in_thread(lambda: links.hidden[0].send(2, torch.full((4,), 2.0)))
    third.join(0.2)
    assert third.is_alive()
    for step in range(3):
        assert links.hidden[1].post_receive(step, (4,), torch.float32).wait()[0] == step
    third.join(10)
    assert not third.is_alive()


def test_tensor_parallel_ranks_get_plans_and_their_own_hidden_states(
    make: Callable[..., LinkSet],
) -> None:
    links = make(2, 2)
    links.head.send_plan(0, b"plan")
    assert [links.stages[rank].receive_plan() for rank in (1, 2, 3)] == [(0, b"plan")] * 3
    for rank in (0, 1):
        links.hidden[rank].send(0, torch.full((2,), float(rank)))
    for rank in (2, 3):
        got = links.hidden[rank].post_receive(0, (2,), torch.float32).wait()
        assert got.tolist() == [float(rank - 2)] * 2
    links.stages[2].send_result(0, b"result")
    assert links.results(1) == [(0, b"result", [])]
    links.stages[3].report_failure("planted")
    assert links.woken.wait(10)
    with pytest.raises(PipelineError, match=r"stage 1 \(TP rank 1\) failed: planted"):
        links.head.poll_results()
