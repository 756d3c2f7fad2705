"""A server whose stages others start: another node's command, or torchrun. All on loopback."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import httpx
import psutil
import pytest

from tests.live_servers import Server, stop, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

BODY = {"prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}
SMALL = ("--max-model-len", "2048")


def answer(server: Server) -> str:
    reply = httpx.post(server.base_url + "/v1/completions", json=BODY, timeout=60).json()
    return str(reply["choices"][0]["text"])


def meeting_flags() -> tuple[str, ...]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    return ("--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", port)


@contextlib.contextmanager
def torchrun(log: Path, *flags: str) -> Iterator[Server]:
    """The server under torchrun with two processes, once it serves."""
    command = (sys.executable, "-m", "torch.distributed.run", "--standalone")
    program = ("--nproc-per-node", "2", "-m", "atom_lite.serve", "--port", "0")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, *program, *flags],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )

    def url() -> re.Match[str] | None:
        assert process.poll() is None, log.read_text()
        return re.search(r"on (http://[\d.:]+)", log.read_text())

    server = Server(process, "", log)
    try:
        wait_until(lambda: url() is not None, 90, "the server serves")
        found = url()
        assert found is not None
        yield Server(process, found[1], log)
    finally:
        stop(server)


def test_torchrun_starts_head_and_stage_and_all_end_with_the_server(tmp_path: Path) -> None:
    with torchrun(tmp_path / "log.txt", *SMALL) as server:
        assert answer(server).startswith(" Paris")
        everybody = psutil.Process(server.pid).children(recursive=True)
        (engine,) = [p for p in everybody if "atom_lite.engine.process" in p.cmdline()]
        ranks = [p for p in everybody if "atom_lite.serve" in p.cmdline()]
        assert len(ranks) == 2
        frontend = engine.parent()
        assert frontend in ranks
        frontend.send_signal(signal.SIGTERM)
        assert server.wait(30) == 0
        _, alive = psutil.wait_procs(everybody, timeout=10)
        assert not alive


@pytest.mark.full
def test_a_node_ends_when_the_head_on_the_other_is_lost(
    start_server: Callable[..., Server], tmp_path: Path
) -> None:
    flags = (*SMALL, "--pipeline-parallel-size", "4", *meeting_flags())
    log = tmp_path / "node1.txt"
    with log.open("wb") as output:
        node = subprocess.Popen(
            [sys.executable, "-m", "atom_lite.serve", *flags, "--node-rank", "1"],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        server = start_server(*flags, "--engine-death-grace-seconds", "0")
        assert answer(server).startswith(" Paris")
        server.engine_process().send_signal(signal.SIGKILL)
        assert server.wait(30) == 1
        assert node.wait(30) == 3
        assert "the head is gone" in log.read_text()
    finally:
        node.kill()
        node.wait()


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_server_that_ends_while_it_waits_for_a_node_leaves_nothing(
    tmp_path: Path, number: signal.Signals
) -> None:
    log = tmp_path / "log.txt"
    flags = ("--port", "0", "--pipeline-parallel-size", "4", *meeting_flags())
    with log.open("wb") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", "atom_lite.serve", *flags],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_until(lambda: "Waiting at 127.0.0.1" in log.read_text(), 60, "it waits")
        everybody = psutil.Process(server.pid).children(recursive=True)
        assert len(everybody) == 2  # the engine and stage 1
        server.send_signal(number)
        assert server.wait(30) == (0 if number == signal.SIGTERM else -number)
        _, alive = psutil.wait_procs(everybody, timeout=30)  # one may still import torch
        assert not alive
    finally:
        server.kill()
        server.wait()
