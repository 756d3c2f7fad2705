"""A server process for the time of a measurement: started, awaited, and surely gone afterwards.

The process leads a group of its own, so that its children end with it whatever it does about
signals. Everything is bounded in time. Runs in the benchmark's process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.stream_client import LoadError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STOP_SECONDS = 20.0
POLL_SECONDS = 0.05
LOG_TAIL = 1500  # characters of the log that an error shows


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How to start a server.

    Args:
        name: for reports.
        command: program and arguments; reports show it.
        base_url: where it will listen.
        environment: on top of this process's own.
        start_seconds: until `/health` must answer 200.
    """

    name: str
    command: tuple[str, ...]
    base_url: str
    environment: dict[str, str]
    start_seconds: float = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningServer:
    """A healthy server."""

    launch: Launch
    pid: int
    start_seconds: float


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(launch: Launch, log: Path) -> Iterator[RunningServer]:
    """Start the server, wait until it is healthy, stop its whole group at the end.

    Raises:
        LoadError: it ended or was not healthy in time; carries the log's tail.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            launch.command,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=os.environ | launch.environment,
            start_new_session=True,
        )
        try:
            seconds = _wait_healthy(process, launch, log)
            yield RunningServer(launch=launch, pid=process.pid, start_seconds=seconds)
        finally:
            stop_group(process)


def _wait_healthy(process: subprocess.Popen[bytes], launch: Launch, log: Path) -> float:
    started = time.perf_counter()
    while (waited := time.perf_counter() - started) < launch.start_seconds:
        code = process.poll()
        if code is not None:
            raise LoadError(f"{launch.name} ended with code {code} at start: {_tail(log)}")
        if _is_healthy(launch.base_url):
            return time.perf_counter() - started
        time.sleep(POLL_SECONDS)
    raise LoadError(f"{launch.name} was not healthy after {waited:.0f} s: {_tail(log)}")


def _is_healthy(base_url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{base_url}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-LOG_TAIL:].strip() or "(it logged nothing)"


def exit_on_sigterm() -> None:
    """Make SIGTERM leave through `finally` blocks, so that no started server outlives us."""

    def leave(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, leave)


def stop_group(process: subprocess.Popen[bytes]) -> None:
    """End a process that leads a group: SIGTERM, some time, then SIGKILL to what is left."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # also children that outlived their parent
    process.wait(STOP_SECONDS)
