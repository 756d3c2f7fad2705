"""How long the compiled kernels of a process take, by part of the forward pass.

The kernels are reached through `ctypes.CDLL`; while a model is loaded under `clocked_kernels`, the
libraries that it opens hand out functions that add up their own time. What this costs, two clock
readings a call, is counted as Python's. Runs in the roofline's process only.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

if TYPE_CHECKING:
    from collections.abc import Iterator

PARTS = ("linear", "attention", "layers")
OTHER = "other"


class KernelClock:
    """Seconds by part since the last reset."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def reset(self) -> None:
        """Begin anew."""
        self.seconds = dict.fromkeys((*PARTS, OTHER), 0.0)


class _ClockedFunction:
    """A C function that adds its time to a clock; signature attributes go through to it."""

    def __init__(self, function: Any, part: str, clock: KernelClock) -> None:
        object.__setattr__(self, "_parts", (function, part, clock))

    def __call__(self, *arguments: Any) -> Any:
        function, part, clock = self._parts
        started = time.perf_counter()
        try:
            return function(*arguments)
        finally:
            clock.seconds[part] = clock.seconds.get(part, 0.0) + time.perf_counter() - started

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parts[0], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._parts[0], name, value)


class _ClockedLibrary:
    """A loaded library whose functions are clocked."""

    def __init__(self, library: ctypes.CDLL, clock: KernelClock) -> None:
        self._library = library
        self._clock = clock
        self._functions: dict[str, _ClockedFunction] = {}

    def __getattr__(self, name: str) -> _ClockedFunction:
        if name not in self._functions:
            function = getattr(self._library, name)
            self._functions[name] = _ClockedFunction(function, part_of(name), self._clock)
        return self._functions[name]


def part_of(kernel: str) -> str:
    """The part that a kernel's name belongs to."""
    return next((part for part in PARTS if part in kernel), OTHER)


@contextlib.contextmanager
def clocked_kernels() -> Iterator[KernelClock]:
    """Clock every library of this project that is opened inside; none may be open before."""
    clock = KernelClock()
    clock.reset()
    plain = ctypes.CDLL

    def opened(name: Any, *arguments: Any, **options: Any) -> Any:
        library = plain(name, *arguments, **options)
        ours = name is not None and "atom_lite" in str(name)
        return _ClockedLibrary(library, clock) if ours else library

    with patch.object(ctypes, "CDLL", opened):
        yield clock
