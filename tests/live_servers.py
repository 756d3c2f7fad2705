"""Real servers for the end-to-end tests: own processes, real sockets, the real model."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import psutil
import pytest

from tests.fakes.tiny_model import write_tiny_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

START_SECONDS = 120
STOP_SECONDS = 30


@dataclass
class Server:
    """A running `python -m atom_lite.serve`."""

    process: subprocess.Popen[bytes]
    base_url: str
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def engine_process(self) -> psutil.Process:
        return self._child("atom_lite.engine.process")

    def grammar_compiler(self) -> psutil.Process:
        return self._child("atom_lite.engine.grammar_process")

    def _child(self, module: str) -> psutil.Process:
        children = psutil.Process(self.pid).children()
        (found,) = [child for child in children if module in child.cmdline()]
        return found

    def log_text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, timeout: float = STOP_SECONDS) -> int:
        return self.process.wait(timeout)

    def metric(self, name: str, **labels: str) -> float:
        """The value of one series; the sum over those that match the given labels."""
        text = httpx.get(self.base_url + "/metrics").text
        values = []
        for line in text.splitlines():
            match = re.fullmatch(r"([a-zA-Z0-9_:]+)(?:\{(.*)\})? (\S+)", line)
            if match is None or match[1] != name:
                continue
            found = dict(re.findall(r'(\w+)="([^"]*)"', match[2] or ""))
            if all(found.get(key) == value for key, value in labels.items()):
                values.append(float(match[3]))
        assert values, f"no series {name} {labels}"
        return sum(values)


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Poll a condition of another process; there is no event to wait for across processes."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"after {seconds} s still not: {what}"
        time.sleep(0.02)


def start(log: Path, *flags: str, prelude: str = "") -> Server:
    """Start a server on a free port and wait until it is healthy.

    Args:
        log: file for its output.
        flags: of `atom_lite.serve`, without --port.
        prelude: Python source run in the server's main thread before it starts.
    """
    program = (
        ["-c", f"import sys; {prelude}; from atom_lite.serve import main; sys.exit(main())"]
        if prelude
        else ["-m", "atom_lite.serve"]
    )
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *program, "--port", "0", *flags],
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )
    deadline = time.monotonic() + START_SECONDS
    while True:
        text = log.read_text(encoding="utf-8", errors="replace")
        found = re.search(r"on (http://[\d.:a-z\[\]]+)", text)
        if found:
            return Server(process, found[1], log)
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise AssertionError(f"the server did not start:\n{text}")
        time.sleep(0.05)


def start_scripted(directory: Path, tokenizer: Path, *flags: str, **config: Any) -> Server:
    """Start a server whose tiny model says what requests tell it to.

    Args:
        directory: for the model and the log.
        tokenizer: its vocabulary.
        flags: more of them.
        config: changes of the model's config.json.
    """
    write_tiny_model(directory, **config)
    scripted = ("--model", str(directory), "--load-format", "scripted")
    return start(directory / "log.txt", *scripted, "--tokenizer", str(tokenizer), *flags)


def stop_unhurt(server: Server) -> None:
    """End a server that must not have met an error of its own."""
    text = server.log_text()
    stop(server)
    assert "Traceback" not in text, text
    assert "ERROR" not in text, text


def stop(server: Server) -> None:
    """End a server whatever state it is in, and check that it left nothing behind."""
    try:
        children = psutil.Process(server.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        children = []
    if server.process.poll() is None:
        server.signal(signal.SIGINT)
        try:
            server.wait()
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
            raise
    _, alive = psutil.wait_procs(children, timeout=5)
    for child in alive:
        child.kill()
    assert not alive, f"orphan processes: {alive}"


@pytest.fixture(scope="session")
def live_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The default server: no flags, the embedded model. Shared; tests must leave it idle."""
    server = start(tmp_path_factory.mktemp("server") / "log.txt")
    yield server
    stop(server)


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """A factory of servers with flags of their own, stopped at the end of the test."""
    servers: list[Server] = []

    def factory(*flags: str, prelude: str = "") -> Server:
        server = start(tmp_path / f"log{len(servers)}.txt", *flags, prelude=prelude)
        servers.append(server)
        return server

    yield factory
    for server in servers:
        stop(server)
