"""`--enable-dynamic-chunking` alone: two stages on a CPU that serve, calibrate and end cleanly."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import httpx

from tests.live_servers import Server, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

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


MOST_PROMPTS = 6


def test_a_handful_of_long_prompts_installs_a_model_that_then_sizes_the_chunks(
    start_server: Callable[..., Server], tmp_path: Path
) -> None:
    profile = tmp_path / "profile.json"
    server = start_server("--enable-dynamic-chunking", "--dynamic-chunking-profile", str(profile))

    def chunking() -> dict[str, Any]:
        reply = httpx.get(server.base_url + "/server_info").json()
        state: dict[str, Any] = reply["stats"]["chunking"]
        return state

    def serve(number: int) -> None:
        tokens = 2000 + 83 * number
        prompt = [1000 + (index * 7 + number * 1009) % 20000 for index in range(tokens)]
        body = {"prompt": prompt, "max_tokens": 1, "temperature": 0}
        url = server.base_url + "/v1/completions"
        assert httpx.post(url, json=body, timeout=300).is_success

    for number in range(MOST_PROMPTS):
        serve(number)
        if "Dynamic chunking latency model installed: a=" in server.log_text():
            break
    else:
        raise AssertionError(f"no model after {MOST_PROMPTS} long prompts: {chunking()['reason']}")
    serve(MOST_PROMPTS)
    wait_until(lambda: chunking()["chunks_by_reason"].get("model", 0) >= 2, 10, "model chunks")
    assert len(chunking()["models"]) == 2
    stats = chunking()
    assert stats["last_plan_start"] + sum(stats["last_plan"]) == 2000 + 83 * MOST_PROMPTS
    wait_until(profile.exists, 10, "the profile is saved")


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
