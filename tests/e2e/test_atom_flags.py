"""ATOM's own command line against the real server: it serves, and a failing start ends cleanly."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import httpx
import psutil
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.live_servers import Server

GUIDE_LINE = (
    "--enable-dynamic-chunking --enable_chunked_prefill --max-model-len 8192 "
    "--max-num-batched-tokens 2048 --pipeline-parallel-size 2 "
    "--dynamic-chunking-smooth-factor 0.75 --dynamic-chunking-min-chunk-size 256"
)
GUIDE = GUIDE_LINE.split()
START_SECONDS = 120
PARIS = {"prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}

# Python imports this at the start of every process: it plants the fault in one stage's forwards.
FAULT = """
import sys

if {module!r} in sys.orig_argv:
    from atom_lite.models.decoder import Decoder

    def forward(self, arriving, positions, layers, metadata):
        raise RuntimeError("planted in a dummy forward")

    Decoder.forward = forward
"""


def complete(server: Server) -> str:
    reply = httpx.post(server.base_url + "/v1/completions", json=PARIS, timeout=60).json()
    text: str = reply["choices"][0]["text"]
    return text


def test_the_command_line_of_atoms_guide_serves(
    start_server: Callable[..., Server], smollm2_gguf: Path
) -> None:
    server = start_server("--model", str(smollm2_gguf), *GUIDE)
    assert complete(server).startswith(" Paris")
    log = server.log_text()
    for flag in ("--dynamic-chunking-smooth-factor", "--dynamic-chunking-min-chunk-size"):
        assert f"{flag} has no effect with --dynamic-chunking-policy makespan" in log


def test_a_decode_instance_serves_with_the_feature_off(
    start_server: Callable[..., Server],
) -> None:
    role = '{"kv_connector": "MooncakeConnector", "kv_role": "kv_consumer"}'
    server = start_server("--enable-dynamic-chunking", "--kv-transfer-config", role)
    assert complete(server).startswith(" Paris")
    assert "disabling dynamic chunking because kv_role is kv_consumer" in server.log_text()
    state = httpx.get(server.base_url + "/server_info").json()["stats"]["chunking"]
    assert (state["state"], state["num_stages"]) == ("off", 1)


@pytest.mark.parametrize(
    ("module", "named"),
    [
        ("atom_lite.engine.process", "RuntimeError: planted in a dummy forward"),
        ("atom_lite.engine.stage_process", "stage 1 failed: RuntimeError: planted in a dummy"),
    ],
    ids=["first_stage", "last_stage"],
)
def test_atom_36_a_dummy_forward_that_raises_fails_the_start_on_every_stage(
    module: str, named: str, tmp_path: Path, smollm2_gguf: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(FAULT.format(module=module))
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-m", "atom_lite.serve", "--port", "0", "--model", str(smollm2_gguf)]
    ended = subprocess.run(
        [*command, *GUIDE, "--dynamic-chunking-policy", "atom"],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=START_SECONDS,
        check=False,
    )
    assert ended.returncode == 1
    last = ended.stderr.splitlines()[-1]
    assert named in last, ended.stderr
    assert not [process for process in psutil.process_iter() if uses(process, tmp_path)]


def uses(process: psutil.Process, path: Path) -> bool:
    """Whether a live process was started with this directory in its environment."""
    try:
        return str(path) in process.environ().get("PYTHONPATH", "")
    except (psutil.AccessDenied, psutil.NoSuchProcess):  # another user's, or just gone
        return False
