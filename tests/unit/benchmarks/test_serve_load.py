"""The command line, run as users run it, against a server in this process."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.memory import MemoryWatch
from benchmarks.serve_load import parse_load
from benchmarks.stream_client import LoadError
from tests.fakes.openai_server import Behaviour, running

SCRIPT = Path(__file__).resolve().parents[3] / "benchmarks" / "serve_load.py"


def serve_load(behaviour: Behaviour, *flags: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `python benchmarks/serve_load.py`."""

    async def scenario() -> tuple[int, str, str]:
        async with running(behaviour) as server:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, str(SCRIPT), "--base-url", server.base_url, *flags),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=os.environ | {"PYTHONPATH": str(SCRIPT.parents[1])},
            )
            out, error = await asyncio.wait_for(process.communicate(), 60)
            assert process.returncode is not None
            return process.returncode, out.decode(), error.decode()

    return asyncio.run(scenario())


def test_prints_a_table_and_writes_everything_as_json(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "result.json"
    flags = ("--workload", "single", "--points", "128", "--seed", "5", "--json", str(path))
    code, out, error = serve_load(
        Behaviour(), *flags, "--api-key", "secret", "--pid", str(os.getpid())
    )
    assert code == 0, error
    for word in ("TTFT p50", "ITL p50", "max ms", "TPOT", "out tok/s", "seed 5", "memory of"):
        assert word in out
    result = json.loads(path.read_text())
    assert "secret" not in path.read_text()
    assert "--api-key '***'" in result["command"]
    assert result["machine"]["cores"] >= 1
    assert result["machine"]["cpu"]
    assert result["memory"]["peak_bytes"] >= result["memory"]["idle_bytes"] > 1_000_000
    (point,) = result["points"]
    assert point["requests"] == 3
    assert point["output_tokens"] == 3 * 128
    assert 0 < point["ttft_p50"] <= point["ttft_p99"]
    assert 0 < result["client_us_per_chunk"] < 5000


def test_failed_requests_make_the_exit_code_1_and_are_named() -> None:
    behaviour = Behaviour(error_after=100)  # the probes ask for fewer tokens
    code, _, error = serve_load(
        behaviour, "--workload", "concurrency", "--points", "8", "--scale", "0.125"
    )
    assert code == 1
    assert "8 failed" in error
    assert "the engine died" in error


def test_a_server_that_cannot_be_measured_makes_the_exit_code_2() -> None:
    code, out, error = serve_load(Behaviour(status=503), "--workload", "single")
    assert (code, out) == (2, "")
    assert error.startswith("error: a plain request")
    assert error.count("\n") == 1


def test_a_missing_process_is_one_line() -> None:
    code, _, error = serve_load(Behaviour(), "--workload", "single", "--pid", "999999999")
    assert code == 2
    assert error == "error: --pid 999999999: there is no such process\n"


def test_a_fresh_seed_is_drawn_and_a_bad_scale_refused() -> None:
    flags = ["--base-url", "http://h", "--workload", "single"]
    assert parse_load(flags)[0].seed != parse_load(flags)[0].seed
    with pytest.raises(LoadError, match="--scale must be above 0, got 0"):
        parse_load([*flags, "--scale", "0"])


def test_memory_watch_sees_memory_that_is_touched() -> None:
    # a process of its own: this one reuses memory that it has already touched
    program = "import sys; sys.stdin.readline(); block = b'x' * 50_000_000; print(flush=True); "
    child = subprocess.Popen(
        [sys.executable, "-c", program + "sys.stdin.readline()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with child:
        assert child.stdin is not None
        assert child.stdout is not None
        watch = MemoryWatch(child.pid)
        watch.start()
        child.stdin.write(b"\n")
        child.stdin.flush()
        child.stdout.readline()
        use = watch.stop()
        child.stdin.write(b"\n")
    assert use.peak_bytes - use.idle_bytes > 40_000_000
    assert use.peak_rss_bytes >= 40_000_000
    assert use.processes == 1
