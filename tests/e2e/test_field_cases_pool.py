"""Reported failures of other servers that show when the KV cache is too small for everybody.

As in `test_field_cases.py` the model says its script under the real engine; here ten blocks of 16
tokens are shared by sequences of eight. The numbers are those of `tests/architecture`'s table.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.e2e.test_field_cases import DEFGHIJ
from tests.live_servers import Server, start_scripted, stop_unhurt, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FLAGS = (
    *("--num-gpu-blocks-override", "10", "--block-size", "16", "--max-model-len", "128"),
    *("--max-num-seqs", "4", "--max-num-batched-tokens", "16"),
)
NUM_OUTPUT = 60
PROMPTS = [list(range(100 * number, 100 * number + 60)) for number in range(1, 5)]
# Made when they happen only, or by whoever asks.
OWN_SERIES = re.compile(r"(http_requests|http_request_duration|process_|python_)")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, smollm2_gguf: Path) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("pool")
    server = start_scripted(directory, smollm2_gguf, *FLAGS, eos_token_id=2)
    yield server
    stop_unhurt(server)


@pytest.fixture(scope="module")
def first_series(server: Server) -> set[str]:
    """The series of a server that nobody has asked for anything yet."""
    return series(server)


def series(server: Server) -> set[str]:
    lines = httpx.get(server.base_url + "/metrics").text.splitlines()
    names = {line.rpartition(" ")[0] for line in lines if not line.startswith("#")}
    return {name for name in names if not OWN_SERIES.match(name)}


def script_of(prompt: list[int]) -> list[int]:
    """What a model would say after this prompt, and after no other."""
    return [DEFGHIJ[(token + at) % 4] for at, token in enumerate(prompt)]


def ask(server: Server, prompt: list[int], **fields: Any) -> list[str]:
    """The texts of all choices."""
    body = {
        "prompt": prompt,
        "max_tokens": NUM_OUTPUT,
        "temperature": 0,
        "vllm_xargs": {"script": script_of(prompt)},
    }
    reply = httpx.post(server.base_url + "/v1/completions", json=body | fields, timeout=120)
    assert reply.status_code == 200, reply.text
    assert {choice["finish_reason"] for choice in reply.json()["choices"]} == {"length"}
    return [choice["text"] for choice in reply.json()["choices"]]


def preemptions(server: Server) -> float:
    return server.metric("atom_lite:num_preemptions_total")


def together(server: Server, prompts: list[list[int]], **fields: Any) -> list[list[str]]:
    with ThreadPoolExecutor(len(prompts)) as pool:
        return list(pool.map(lambda prompt: ask(server, prompt, **fields), prompts))


def test_case_72_two_that_do_not_fit_together_say_what_each_says_alone(
    first_series: set[str], server: Server
) -> None:
    alone = [ask(server, prompt) for prompt in PROMPTS[:2]]
    before = preemptions(server)
    assert together(server, PROMPTS[:2]) == alone
    assert preemptions(server) > before


def test_case_74_choices_of_one_prompt_survive_preemption(
    first_series: set[str], server: Server
) -> None:
    alone = [ask(server, prompt) for prompt in PROMPTS[:2]]
    before = preemptions(server)
    assert together(server, PROMPTS[:2], n=2) == [texts * 2 for texts in alone]
    assert preemptions(server) > before


def test_case_75_a_small_budget_and_pool_make_progress_with_few_preemptions(
    first_series: set[str], server: Server
) -> None:
    alone = [ask(server, prompt) for prompt in PROMPTS]
    before = preemptions(server)
    assert together(server, PROMPTS) == alone
    assert preemptions(server) - before <= 4 * len(PROMPTS)


def test_case_89_every_series_is_there_from_the_start(
    first_series: set[str], server: Server
) -> None:
    together(server, PROMPTS[:2])
    wait_until(lambda: server.metric("atom_lite:num_requests_running") == 0, 10, "nothing runs")
    assert first_series == series(server)
    assert any("time_to_first_token" in name for name in first_series)
