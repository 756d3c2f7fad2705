from __future__ import annotations

from atom_lite.scheduler.sequence import Order, Sequence, State
from atom_lite.scheduler.waiting_queue import WaitingQueue
from tests.fakes.scheduler_inputs import make_submission


def make_sequence(order: Order) -> Sequence:
    return Sequence(
        submission=make_submission(order[1], 3),
        order=order,
        max_output_tokens=4,
        root_digest=b"",
        tokens=[1, 2, 3],
    )


def drain(queue: WaitingQueue) -> list[Order]:
    return [queue.pop().order for _ in range(len(queue))]


def abort(queue: WaitingQueue, sequence: Sequence) -> None:
    sequence.state = State.FINISHED
    queue.forget(sequence)


def test_priority_goes_before_arrival() -> None:
    queue = WaitingQueue()
    for order in ((1, 0), (0, 2), (0, 1), (-1, 3)):
        queue.push(make_sequence(order))
    assert drain(queue) == [(-1, 3), (0, 1), (0, 2), (1, 0)]
    assert queue.peek() is None


def test_a_returning_sequence_takes_its_own_place() -> None:
    queue = WaitingQueue()
    first, second = make_sequence((0, 0)), make_sequence((0, 1))
    queue.push(first)
    queue.push(second)
    assert queue.pop() is first
    queue.push(first)
    assert queue.peek() is first


def test_finished_sequences_are_skipped_and_not_counted() -> None:
    queue = WaitingQueue()
    sequences = [make_sequence((0, n)) for n in range(4)]
    for sequence in sequences:
        queue.push(sequence)
    abort(queue, sequences[0])
    abort(queue, sequences[2])
    assert len(queue) == 2
    assert [s.order[1] for s in sorted(queue, key=lambda s: s.order)] == [1, 3]
    assert drain(queue) == [(0, 1), (0, 3)]


def test_aborted_entries_behind_a_blocked_head_do_not_pile_up() -> None:
    queue = WaitingQueue()
    queue.push(make_sequence((0, 0)))
    for number in range(1, 500):
        sequence = make_sequence((0, number))
        queue.push(sequence)
        abort(queue, sequence)
    assert len(queue) == 1
    assert len(queue._heap) < 30
