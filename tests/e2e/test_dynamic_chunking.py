"""`--enable-dynamic-chunking` alone: two stages on a CPU that serve, calibrate and end cleanly."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import httpx

from tests.live_servers import Server, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    import psutil


def stages_of(server: Server) -> list[psutil.Process]:
    return [
        child
        for child in server.engine_process().children()
        if "atom_lite.engine.stage_process" in child.cmdline()
    ]


def test_the_flag_alone_serves_over_two_stages_and_shows_its_state(
    start_server: Callable[..., Server],
) -> None:
    server = start_server("--enable-dynamic-chunking")
    assert len(stages_of(server)) == 1  # the engine process itself is stage 0
    body = {"prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}
    reply = httpx.post(server.base_url + "/v1/completions", json=body, timeout=60).json()
    assert reply["choices"][0]["text"].startswith(" Paris")
    long_prompt = [1000 + index * 7 % 20000 for index in range(600)]
    body = {"prompt": long_prompt, "max_tokens": 1, "temperature": 0}
    assert httpx.post(server.base_url + "/v1/completions", json=body, timeout=60).is_success

    def chunking() -> dict[str, object]:
        state: dict[str, object] = httpx.get(server.base_url + "/server_info").json()["stats"][
            "chunking"
        ]
        return state

    assert chunking()["policy"] == "makespan"
    assert chunking()["num_stages"] == 2
    assert chunking()["state"] in ("collecting", "installed")
    assert chunking()["reason"]
    wait_until(
        lambda: server.metric("atom_lite:dynamic_chunks_total") >= 3, 10, "the chunks are counted"
    )
    assert server.metric("atom_lite:calibration_state") == 1
    assert "Dynamic chunking" in server.log_text()


def test_a_stage_that_dies_ends_the_server_with_an_answer_to_everybody(
    start_server: Callable[..., Server],
) -> None:
    server = start_server("--enable-dynamic-chunking", "--engine-death-grace-seconds", "1")
    (stage,) = stages_of(server)
    body = {"prompt": "Tell me", "max_tokens": 2000, "ignore_eos": True, "stream": True}
    url = server.base_url + "/v1/completions"
    with httpx.stream("POST", url, json=body, timeout=60) as reply:
        lines = reply.iter_lines()
        next(lines)
        stage.send_signal(signal.SIGKILL)
        rest = [line for line in lines if line]
    assert '"error"' in rest[-2]
    assert rest[-1] == "data: [DONE]"
    assert server.wait() == 1


def test_an_explicit_single_stage_is_refused(start_server: Callable[..., Server]) -> None:
    try:
        start_server("--enable-dynamic-chunking", "--pipeline-parallel-size", "1")
    except AssertionError as failure:
        assert "--pipeline-parallel-size 1" in str(failure)
    else:
        raise AssertionError("the server started")
