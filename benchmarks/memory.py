"""Resident memory of a server and all of its child processes, sampled while it works.

PSS (each shared page divided by its number of users) where Linux offers it, so that libraries
mapped by several processes count once; RSS elsewhere. Runs in a thread of the benchmark's process:
reading the kernel's figures must not delay the event loop that takes arrival times.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

import psutil

SAMPLE_SECONDS = 2.0  # a sample of a GB of mapped pages costs some 10 ms of kernel time


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """Bytes of a process tree."""

    idle_bytes: int  # before the load
    peak_bytes: int  # highest sample since then
    peak_rss_bytes: int  # sum of each process's own peak since it started, loading included
    processes: int


def tree_bytes(root: psutil.Process) -> int:
    """Memory of `root` and its descendants; processes that end meanwhile count as nothing."""
    return sum(_process_bytes(process) for process in _tree(root))


def _tree(root: psutil.Process) -> list[psutil.Process]:
    try:
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _process_bytes(process: psutil.Process) -> int:
    pss = _kilobytes_of(Path(f"/proc/{process.pid}/smaps_rollup"), "Pss:")
    if pss is not None:
        return pss
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0


def _peak_rss_bytes(process: psutil.Process) -> int:
    return _kilobytes_of(Path(f"/proc/{process.pid}/status"), "VmHWM:") or 0


def _kilobytes_of(path: Path, key: str) -> int | None:
    """The bytes behind `key` in a file of `Key:   123 kB` lines; None without file or key."""
    try:
        text = path.read_text()
    except OSError:  # not Linux, not ours to read, or the process has ended
        return None
    for line in text.splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    return None


class MemoryWatch:
    """Samples a process tree from `start` until `stop`.

    Args:
        pid: root of the tree; must be alive.

    Raises:
        psutil.NoSuchProcess: there is no such process.
    """

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._idle = tree_bytes(self._root)
        self._peak = self._idle
        self._peak_rss: dict[int, int] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="memory-watch", daemon=True)

    def start(self) -> None:
        """Begin sampling."""
        self._thread.start()

    def stop(self) -> MemoryUse:
        """End sampling, with one last sample."""
        self._stopping.set()
        self._thread.join()
        return MemoryUse(
            idle_bytes=self._idle,
            peak_bytes=self._peak,
            peak_rss_bytes=sum(self._peak_rss.values()),
            processes=len(self._peak_rss),
        )

    def _sample(self) -> None:
        while True:
            last = self._stopping.wait(SAMPLE_SECONDS)
            tree = _tree(self._root)
            self._peak = max(self._peak, sum(_process_bytes(process) for process in tree))
            for process in tree:
                peak = max(self._peak_rss.get(process.pid, 0), _peak_rss_bytes(process))
                self._peak_rss[process.pid] = peak
            if last:
                return
