"""An accelerator's queue of work, as far as events show it: nothing passes but when told to."""

from __future__ import annotations


class Device:
    """Makes events and passes their marks; one mark every 125 ms of its own time."""

    def __init__(self) -> None:
        self.num_recorded = 0
        self.num_passed = 0
        self.events: list[DeviceEvent] = []

    def make_event(self) -> DeviceEvent:
        event = DeviceEvent(self)
        self.events.append(event)
        return event


class DeviceEvent:
    """Keeps the contract of `torch.Event`, and refuses to be waited for."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._mark: int | None = None

    def record(self) -> None:
        self._device.num_recorded += 1
        self._mark = self._device.num_recorded

    def query(self) -> bool:
        return self._mark is None or self._mark <= self._device.num_passed

    def elapsed_time(self, end: DeviceEvent) -> float:
        assert self._mark is not None and end._mark is not None, "read without being recorded"
        assert self.query() and end.query(), "read before it has passed"
        return 125.0 * (end._mark - self._mark)

    def synchronize(self) -> None:
        raise AssertionError("a timing synchronised the device")
