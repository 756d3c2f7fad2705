"""A server over two stages one of which is stuck or stopped, as its clients see it."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import httpx
import psutil
import pytest

from tests.pipeline.faults import VARIABLE, fault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.live_servers import Server

FAULTY_ENGINE = "import atom_lite.launch as launch; launch.ENGINE_MODULE = " + repr(
    "tests.pipeline.faulty_engine"
)
STAGES = ("--pipeline-parallel-size", "2", "--pipeline-layer-partition", "15,15")
GRACE = ("--engine-death-grace-seconds", "1")
BODY = {"prompt": "Tell me", "max_tokens": 2000, "ignore_eos": True, "stream": True}


def assert_ends_with_an_answer_to_everybody(
    server: Server, lines: Iterator[str], told: str, seconds: float
) -> None:
    processes = psutil.Process(server.pid).children(recursive=True)
    started = time.monotonic()
    rest = [line for line in lines if line]
    assert told in rest[-2]
    assert rest[-1] == "data: [DONE]"
    assert time.monotonic() - started < seconds
    assert httpx.get(server.base_url + "/health").status_code == 503
    assert server.wait(30) == 1
    _, alive = psutil.wait_procs(processes, timeout=5)
    assert not alive


@pytest.mark.parametrize(("stage", "layer"), [(0, 0), pytest.param(1, 15, marks=pytest.mark.full)])
def test_a_forward_pass_that_is_stuck_ends_the_server(
    start_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch, stage: int, layer: int
) -> None:
    monkeypatch.setenv(VARIABLE, fault(layer=layer, kind="hang", step_id=8))
    flags = (*STAGES, *GRACE, "--step-timeout-seconds", "3")
    server = start_server(*flags, prelude=FAULTY_ENGINE)
    url = server.base_url + "/v1/completions"
    with httpx.stream("POST", url, json=BODY, timeout=60) as reply:
        lines = reply.iter_lines()
        next(lines)
        told = f"stage {stage} has not ended step 8"
        assert_ends_with_an_answer_to_everybody(server, lines, told, 30)


@pytest.mark.full
def test_a_stopped_stage_ends_the_server(start_server: Callable[..., Server]) -> None:
    server = start_server(*STAGES, *GRACE)
    stages = server.engine_process().children()
    assert len(stages) == 1
    url = server.base_url + "/v1/completions"
    with httpx.stream("POST", url, json=BODY, timeout=60) as reply:
        lines = reply.iter_lines()
        next(lines)
        stages[0].send_signal(signal.SIGSTOP)
        told = "stage 1 is gone: it has stopped answering"
        assert_ends_with_an_answer_to_everybody(server, lines, told, 30)


@pytest.mark.full
def test_a_stopped_head_ends_the_server(start_server: Callable[..., Server]) -> None:
    server = start_server(*STAGES, *GRACE)
    url = server.base_url + "/v1/completions"
    with httpx.stream("POST", url, json=BODY, timeout=60) as reply:
        lines = reply.iter_lines()
        next(lines)
        server.engine_process().suspend()
        told = "stage 0 has stopped answering"
        assert_ends_with_an_answer_to_everybody(server, lines, told, 40)
