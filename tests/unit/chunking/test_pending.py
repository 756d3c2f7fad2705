import pytest

from atom_lite.chunking.pending import MAX_PENDING, PendingTimings


class ManualTiming:
    """A device timing that ends when told, and cannot be read before."""

    def __init__(self, duration: float) -> None:
        self.done = False
        self._duration = duration

    def is_done(self) -> bool:
        return self.done

    def seconds(self) -> float:
        if not self.done:
            raise RuntimeError("reading an unfinished timing waits for the device")
        return self._duration


def test_atom_37_samples_are_polled_and_never_waited_for() -> None:
    pending: PendingTimings[str] = PendingTimings()
    first, second = ManualTiming(1.0), ManualTiming(2.0)
    pending.add("first", first)
    pending.add("second", second)
    assert pending.drain() == []
    second.done = True
    assert pending.drain() == []  # in order: the device runs them in order
    first.done = True
    assert pending.drain() == [("first", 1.0), ("second", 2.0)]
    assert pending.drain() == []


def test_atom_37_at_most_eight_are_in_flight() -> None:
    pending: PendingTimings[int] = PendingTimings()
    timings = [ManualTiming(1.0) for _ in range(8)]
    for index, timing in enumerate(timings):
        assert pending.has_room
        pending.add(index, timing)
    assert not pending.has_room
    with pytest.raises(AssertionError):
        pending.add(8, ManualTiming(1.0))
    timings[0].done = True
    pending.drain()
    assert pending.has_room
    assert MAX_PENDING == 8
