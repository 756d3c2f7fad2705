"""The planning thread: work there, outcomes here, in order, and never a lost failure."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any

import pytest

from atom_lite.engine.background_thread import BackgroundThread

if TYPE_CHECKING:
    from collections.abc import Iterator

WAIT_SECONDS = 10.0


class Woken:
    def __init__(self) -> None:
        self._news = threading.Semaphore(0)

    def __call__(self) -> None:
        self._news.release()

    def wait(self) -> None:
        assert self._news.acquire(timeout=WAIT_SECONDS)


@pytest.fixture
def woken() -> Woken:
    return Woken()


@pytest.fixture
def background(woken: Woken) -> Iterator[BackgroundThread]:
    thread = BackgroundThread(woken)
    yield thread
    thread.close()


def test_a_job_runs_elsewhere_and_is_delivered_here(
    background: BackgroundThread, woken: Woken
) -> None:
    delivered: list[tuple[int, int]] = []
    here = threading.get_ident()
    background.run(
        threading.get_ident, lambda where: delivered.append((where, threading.get_ident()))
    )
    woken.wait()
    assert delivered == []  # not before the head asks
    assert background.deliver()
    ((where, by),) = delivered
    assert where != here
    assert by == here
    assert not background.deliver()


def test_outcomes_come_in_the_order_of_the_jobs(background: BackgroundThread, woken: Woken) -> None:
    delivered: list[int] = []
    for number in range(20):
        background.run(lambda number=number: number, delivered.append)  # type: ignore[misc]
    for _ in range(20):
        woken.wait()
    background.deliver()
    assert delivered == list(range(20))


def test_a_job_that_raises_raises_where_it_is_delivered(
    background: BackgroundThread, woken: Woken
) -> None:
    def fail() -> int:
        raise RuntimeError("no plan")

    delivered: list[int] = []
    background.run(fail, delivered.append)
    background.run(lambda: 1, delivered.append)
    woken.wait()
    woken.wait()
    with pytest.raises(RuntimeError, match="no plan"):
        background.deliver()
    background.deliver()
    assert delivered == [1]


def test_a_job_may_ask_for_another_when_it_is_delivered(
    background: BackgroundThread, woken: Woken
) -> None:
    delivered: list[str] = []
    background.run(lambda: "first", lambda _: background.run(lambda: "second", delivered.append))
    woken.wait()
    background.deliver()
    woken.wait()
    background.deliver()
    assert delivered == ["second"]


def test_closing_drops_what_has_not_begun(woken: Woken) -> None:
    thread = BackgroundThread(woken)
    begun, go_on = threading.Event(), threading.Event()
    ran: list[int] = []

    def first() -> None:
        begun.set()
        go_on.wait(WAIT_SECONDS)

    thread.run(first, lambda _: None)
    assert begun.wait(WAIT_SECONDS)
    thread.run(lambda: ran.append(1), lambda _: None)
    closing = threading.Thread(target=thread.close)
    closing.start()
    assert thread._is_closing.wait(WAIT_SECONDS)
    go_on.set()
    closing.join(WAIT_SECONDS)
    assert not closing.is_alive()
    assert ran == []


def test_what_comes_while_nothing_was_there_is_news_all_the_same(
    background: BackgroundThread, woken: Woken
) -> None:
    class Late(deque[Any]):
        """Empty at the first look; a job ends right after it."""

        looks = 0

        def __bool__(self) -> bool:
            self.looks += 1
            return self.looks > 1 and len(self) > 0

    delivered: list[int] = []
    background._outcomes = Late()
    background.run(lambda: 1, delivered.append)
    woken.wait()
    told = background.deliver() or background.deliver()
    assert delivered == [1]
    assert told
