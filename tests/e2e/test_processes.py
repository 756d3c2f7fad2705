"""Start, stop and death of the processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import httpx
import psutil
import pytest

from tests.live_servers import Server, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

StartServer = "Callable[..., Server]"

LONG = {"prompt": "Tell me", "max_tokens": 4000, "ignore_eos": True, "stream": True}


def serve(*flags: str) -> subprocess.CompletedProcess[str]:
    """Run the server where it is expected to refuse its start."""
    return subprocess.run(
        [sys.executable, "-m", "atom_lite.serve", *flags],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def data_lines(reply: httpx.Response) -> Iterator[str]:
    return (line[6:] for line in reply.iter_lines() if line.startswith("data: "))


class StreamInBackground:
    """Reads one stream to its end on a thread."""

    def __init__(self, server: Server, **fields: Any) -> None:
        self.events: list[str] = []
        self.failure: Exception | None = None
        self.started = threading.Event()
        body = {**LONG, **fields}
        self._thread = threading.Thread(target=self._read, args=(server, body), daemon=True)
        self._thread.start()
        assert self.started.wait(30)

    def _read(self, server: Server, body: dict[str, Any]) -> None:
        url = server.base_url + "/v1/completions"
        try:
            with httpx.stream("POST", url, json=body, timeout=60) as reply:
                for data in data_lines(reply):
                    self.events.append(data)
                    self.started.set()
        except httpx.HTTPError as error:
            self.failure = error

    def join(self, seconds: float = 30) -> None:
        self._thread.join(seconds)
        assert not self._thread.is_alive(), "the stream never ended"


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--port", "70000"), "70000"),
        (("--no-such-flag",), "--no-such-flag"),
        (("--enable-lora",), "LoRA"),
        (("--model", "/no/such/model"), "/no/such/model"),
        (("--max-num-seqs", "64", "--max-num-batched-tokens", "32"), "32"),
        (("--max-model-len", "9000"), "8192"),
        (("--config", "/no/such/file.toml"), "/no/such/file.toml"),
    ],
)
def test_operators_mistake_is_one_line_and_exit_2(flags: tuple[str, ...], named: str) -> None:
    result = serve(*flags)
    assert result.returncode == 2, result.stderr
    (line,) = [line for line in result.stderr.splitlines() if "error" in line]
    assert named in line
    assert "Traceback" not in result.stderr


def test_port_in_use_is_told_before_the_model_loads() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = serve("--port", str(port))
    assert result.returncode == 2
    assert str(port) in result.stderr


def test_port_that_another_server_takes_meanwhile_is_told() -> None:
    """Two that bind one port do not notice; the one that listens second must."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
        process = subprocess.Popen(
            [sys.executable, "-m", "atom_lite.serve", "--port", str(port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            children = psutil.Process(process.pid).children
            wait_until(lambda: bool(children()), 60, "the engine starts")
            other.listen()
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
            process.communicate()
    assert process.returncode == 2, errors
    assert str(port) in errors.decode().splitlines()[-1]
    assert b"Traceback" not in errors


def test_reader_that_never_reads_does_not_keep_the_server_up(
    start_server: Callable[..., Server],
) -> None:
    server = start_server("--shutdown-timeout", "0.2")
    host, port = server.base_url.removeprefix("http://").split(":")
    body = json.dumps(LONG).encode()
    with socket.create_connection((host, int(port))) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        client.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n" % len(body) + body
        )
        wait_until(lambda: server.metric("atom_lite:num_requests_running") == 1, 20, "it runs")
        server.signal(signal.SIGTERM)
        assert server.wait(20) == 0


@pytest.mark.full
def test_stopped_engine_turns_health_503_and_does_not_hold_up_the_end(
    start_server: Callable[..., Server],
) -> None:
    server = start_server("--shutdown-timeout", "0.2")
    engine = server.engine_process()
    engine.suspend()
    wait_until(lambda: health(server) == 503, 30, "the silence is noticed")
    engine.resume()
    wait_until(lambda: health(server) == 200, 10, "the engine is back")
    engine.suspend()
    server.signal(signal.SIGTERM)
    assert server.wait(30) == 0
    assert not engine.is_running()


def health(server: Server) -> int:
    return httpx.get(server.base_url + "/health").status_code


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_before_anything_runs_is_a_clean_end(number: signal.Signals) -> None:
    """As while a model is fetched from the hub."""
    program = (
        "import os, signal, sys, atom_lite.launch as launch\n"
        # a process started in the background inherits that Ctrl-C is ignored
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from atom_lite import serve\n"
        f"launch.resolve_checkpoint = lambda *a, **k: os.kill(os.getpid(), {int(number)})\n"
        "sys.exit(serve.main(['--port', '0']))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stderr
    assert b"Traceback" not in result.stderr


def test_sigterm_lets_streams_end_and_refuses_new_ones(
    start_server: Callable[..., Server],
) -> None:
    server = start_server("--shutdown-timeout", "30")
    stream = StreamInBackground(server, max_tokens=60)
    server.signal(signal.SIGTERM)
    wait_until(lambda: refuses_connections(server), 10, "new connections are refused")
    stream.join()
    assert stream.failure is None
    assert stream.events[-1] == "[DONE]"
    assert json.loads(stream.events[-2])["choices"][0]["finish_reason"] == "length"
    assert server.wait() == 0


def test_shutdown_timeout_cuts_streams_with_a_last_word(
    start_server: Callable[..., Server],
) -> None:
    server = start_server("--shutdown-timeout", "0.5")
    stream = StreamInBackground(server)
    server.signal(signal.SIGTERM)
    stream.join()
    assert stream.events[-1] == "[DONE]"
    assert server.wait() == 0


def refuses_connections(server: Server) -> bool:
    try:
        httpx.get(server.base_url + "/health", timeout=2)
    except httpx.ConnectError:
        return True
    return False


def test_dead_engine_ends_streams_turns_health_503_and_exits_1(
    start_server: Callable[..., Server],
) -> None:
    server = start_server("--engine-death-grace-seconds", "2")
    streams = [StreamInBackground(server) for _ in range(3)]
    server.engine_process().send_signal(signal.SIGKILL)
    for stream in streams:
        stream.join(10)
        assert stream.failure is None
        assert "error" in json.loads(stream.events[-2])
        assert stream.events[-1] == "[DONE]"
    assert httpx.get(server.base_url + "/health").status_code == 503
    reply = httpx.post(server.base_url + "/v1/completions", json={"prompt": "x"})
    assert reply.status_code in (500, 503)
    assert server.wait() == 1


def test_killed_frontend_leaves_no_engine(start_server: Callable[..., Server]) -> None:
    server = start_server()
    engine = server.engine_process()
    os.kill(server.pid, signal.SIGKILL)
    server.wait()
    _, alive = psutil.wait_procs([engine], timeout=10)
    assert not alive


def test_ctrl_c_while_loading_exits_cleanly(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "atom_lite.serve", "--port", "0"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    wait_until(lambda: bool(psutil.Process(process.pid).children()), 30, "the engine process runs")
    children = psutil.Process(process.pid).children()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors
    assert b"Traceback" not in errors
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive


def test_frontend_never_imports_the_data_plane(
    start_server: Callable[..., Server], tmp_path: Path
) -> None:
    dump = tmp_path / "modules.txt"
    prelude = (
        "import signal, pathlib; signal.signal(signal.SIGUSR1, lambda *_: "
        f"pathlib.Path({str(dump)!r}).write_text(' '.join(sys.modules) + ' END'))"
    )
    server = start_server(prelude=prelude)
    reply = httpx.post(
        server.base_url + "/v1/chat/completions",
        json={
            "messages": [{"role": "user", "content": "hi"}],
            "response_format": {"type": "json_object"},
            "max_tokens": 4,
        },
        timeout=60,
    )
    assert reply.status_code == 200
    server.signal(signal.SIGUSR1)
    wait_until(lambda: dump.exists() and dump.read_text().endswith("END"), 10, "modules are dumped")
    modules = set(dump.read_text().split())
    assert "atom_lite.api.app" in modules
    assert not modules & {"torch", "transformers", "xgrammar", "llguidance", "triton"}
