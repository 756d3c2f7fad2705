"""The main job over real HTTP: curl-like clients and the OpenAI SDK against the real model."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import httpx
import openai
import pytest

from tests.live_servers import Server, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

MODEL = "SmolLM2-135M-Instruct"


@pytest.fixture
def client(live_server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=live_server.base_url + "/v1", api_key="unused") as client:
        yield client


def complete(server: Server, prompt: Any, **fields: Any) -> dict[str, Any]:
    body = {"model": MODEL, "prompt": prompt, "temperature": 0, **fields}
    response = httpx.post(server.base_url + "/v1/completions", json=body, timeout=120)
    assert response.status_code == 200, response.text
    return response.json()


def stream_text(server: Server, prompt: Any, **fields: Any) -> str:
    body = {"model": MODEL, "prompt": prompt, "temperature": 0, "stream": True, **fields}
    text = ""
    with httpx.stream("POST", server.base_url + "/v1/completions", json=body, timeout=120) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        for line in reply.iter_lines():
            if line.startswith("data: ") and line != "data: [DONE]":
                for choice in json.loads(line[6:])["choices"]:
                    text += choice["text"]
    return text


def test_the_capital_of_france_is_paris(live_server: Server) -> None:
    answer = complete(live_server, "The capital of France is", max_tokens=8)
    assert answer["choices"][0]["text"].startswith(" Paris")
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["prompt_tokens"] == 5
    assert answer["usage"]["completion_tokens"] == 8


def test_sdk_chat_and_stream_agree(client: openai.OpenAI) -> None:
    messages: list[Any] = [{"role": "user", "content": "Name three colours."}]
    whole = client.chat.completions.create(
        model=MODEL, messages=messages, temperature=0, max_completion_tokens=24
    )
    chunks = list(
        client.chat.completions.create(
            model=MODEL,
            messages=messages,
            temperature=0,
            max_completion_tokens=24,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert text
    reasons = [c.choices[0].finish_reason for c in chunks if c.choices]
    assert reasons[-1] == whole.choices[0].finish_reason
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_prompt_numbers_are_the_same_after_a_cache_hit(live_server: Server) -> None:
    prompt = list(range(1000, 1033))  # two blocks and a token
    fields = {"echo": True, "logprobs": 1, "max_tokens": 1}
    first, again = (complete(live_server, prompt, **fields)["choices"][0] for _ in range(2))
    warm = complete(live_server, prompt, **fields, seed=3, logit_bias={"5": 100}, n=2)
    numbers = first["logprobs"]["token_logprobs"]
    assert len(numbers) == 34
    assert again["logprobs"] == first["logprobs"]
    for choice in warm["choices"]:
        told = choice["logprobs"]["token_logprobs"]
        assert told[1:33] == pytest.approx(numbers[1:33], abs=1e-3)


def test_seeded_choices_differ_and_come_again(live_server: Server) -> None:
    def texts(**fields: Any) -> list[str]:
        answer = complete(
            live_server, "Once upon a time", max_tokens=12, temperature=1, seed=1, **fields
        )
        return [choice["text"] for choice in answer["choices"]]

    choices = texts(n=3)
    assert len(set(choices)) == 3
    assert texts(n=3) == choices
    assert texts() == choices[:1]
    streamed = stream_text(live_server, "Once upon a time", max_tokens=12, temperature=1, seed=1)
    assert streamed == choices[0]


def test_sdk_lists_and_retrieves_the_model(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("no-such-model")


def test_streamed_text_equals_whole_text(live_server: Server) -> None:
    prompt = "Once upon a time, in a small town by the sea,"
    whole = complete(live_server, prompt, max_tokens=40)
    assert stream_text(live_server, prompt, max_tokens=40) == whole["choices"][0]["text"]


def test_seeded_sampling_is_reproducible_alone_and_in_company(live_server: Server) -> None:
    def sample(seed: int) -> str:
        fields = {"temperature": 1.0, "seed": seed, "max_tokens": 24}
        text: str = complete(live_server, "The old man", **fields)["choices"][0]["text"]
        return text

    alone = [sample(seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(sample, range(4)))
    assert together == alone
    assert len(set(alone)) > 1


def test_second_identical_prompt_reports_cached_blocks(live_server: Server) -> None:
    prompt = "Cached tokens are counted in whole blocks. " * 8
    first = complete(live_server, prompt, max_tokens=4)
    second = complete(live_server, prompt, max_tokens=4)
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    tokens = second["usage"]["prompt_tokens"]
    assert cached == (tokens - 1) // 16 * 16
    assert first["choices"][0]["text"] == second["choices"][0]["text"]


def test_whole_prompt_in_cache_recomputes_the_last_block(live_server: Server) -> None:
    words = httpx.post(
        live_server.base_url + "/tokenize", json={"prompt": "one two three four five " * 20}
    ).json()["tokens"][:32]
    first = complete(live_server, words, max_tokens=8)
    second = complete(live_server, words, max_tokens=8)
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == 16
    assert first["choices"][0]["text"] == second["choices"][0]["text"]


def test_stop_string_ends_text_exactly_before_it(live_server: Server) -> None:
    prompt = "Count: one, two, three, four,"
    free = complete(live_server, prompt, max_tokens=16)["choices"][0]["text"]
    stop = free[6:10]
    cut = complete(live_server, prompt, max_tokens=16, stop=[stop])
    assert cut["choices"][0]["text"] == free[: free.index(stop)]
    assert cut["choices"][0]["finish_reason"] == "stop"
    assert cut["choices"][0]["stop_reason"] == stop
    assert stream_text(live_server, prompt, max_tokens=16, stop=[stop]) == free[: free.index(stop)]


def test_a_request_that_ended_on_a_stop_string_changes_nothing_for_the_next(
    live_server: Server,
) -> None:
    prompt = "A prompt that two requests share, longer than a block: one, two, three, four, five,"
    fresh = complete(live_server, prompt, max_tokens=16, cache_salt="as on a fresh server")
    text = fresh["choices"][0]["text"]
    assert fresh["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    stopped = complete(live_server, prompt, max_tokens=16, stop=[text[5:8]])
    assert stopped["choices"][0]["finish_reason"] == "stop"
    after = complete(live_server, prompt, max_tokens=16)
    assert after["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert after["choices"][0]["text"] == text


def test_stop_token_id_ends_and_is_named(live_server: Server) -> None:
    prompt = "The capital of France is"
    paris = httpx.post(
        live_server.base_url + "/tokenize", json={"prompt": " Paris", "add_special_tokens": False}
    ).json()["tokens"]
    answer = complete(live_server, prompt, max_tokens=16, stop_token_ids=paris)
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["choices"][0]["stop_reason"] == paris[0]
    assert answer["choices"][0]["text"] == ""
    kept = complete(live_server, prompt, max_tokens=16, stop_token_ids=paris, min_tokens=4)
    assert kept["usage"]["completion_tokens"] >= 4


def test_client_that_leaves_a_stream_frees_its_blocks(live_server: Server) -> None:
    aborted = live_server.metric("atom_lite:request_success_total", finished_reason="abort")
    body = {"model": MODEL, "prompt": "Tell me", "max_tokens": 2000, "ignore_eos": True}
    url = live_server.base_url + "/v1/completions"
    with httpx.stream("POST", url, json={**body, "stream": True}, timeout=60) as reply:
        lines = reply.iter_lines()
        next(lines)
    wait_until(
        lambda: (
            live_server.metric("atom_lite:request_success_total", finished_reason="abort")
            == aborted + 1
        ),
        5,
        "the abort is counted",
    )
    wait_until(lambda: live_server.metric("atom_lite:num_requests_running") == 0, 3, "nothing runs")
    assert live_server.metric("atom_lite:kv_cache_usage_perc") == 0


def test_client_that_leaves_without_streaming_is_aborted(live_server: Server) -> None:
    aborted = live_server.metric("atom_lite:request_success_total", finished_reason="abort")
    body = {"model": MODEL, "prompt": "Tell me", "max_tokens": 2000, "ignore_eos": True}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(live_server.base_url + "/v1/completions", json=body, timeout=1.0)
    wait_until(
        lambda: (
            live_server.metric("atom_lite:request_success_total", finished_reason="abort")
            == aborted + 1
        ),
        5,
        "the abort is counted",
    )
    wait_until(lambda: live_server.metric("atom_lite:num_requests_running") == 0, 3, "nothing runs")


def test_a_neighbour_that_leaves_changes_nothing(live_server: Server) -> None:
    prompt = "The history of bridges begins"
    alone = complete(live_server, prompt, max_tokens=48)["choices"][0]["text"]
    body = {"model": MODEL, "prompt": "Tell me", "max_tokens": 2000, "ignore_eos": True}
    with ThreadPoolExecutor(1) as pool:
        url = live_server.base_url + "/v1/completions"
        with httpx.stream("POST", url, json={**body, "stream": True}, timeout=60) as reply:
            lines = reply.iter_lines()
            next(lines)
            other = pool.submit(complete, live_server, prompt, max_tokens=48)
            next(lines)
        assert other.result()["choices"][0]["text"] == alone


def test_too_long_prompt_is_a_400_before_the_stream(live_server: Server) -> None:
    body = {"model": MODEL, "prompt": [5] * 9000, "stream": True}
    reply = httpx.post(live_server.base_url + "/v1/completions", json=body)
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert "9000" in error["message"]
    assert "8192" in error["message"]


def test_unicode_survives_both_modes(live_server: Server) -> None:
    prompt = "Repeat after me: hi 😀 日本語 👨‍👩‍👧. hi 😀 日本語"
    whole = complete(live_server, prompt, max_tokens=32)["choices"][0]["text"]
    assert stream_text(live_server, prompt, max_tokens=32) == whole


def test_requests_beyond_the_batch_all_end(live_server: Server) -> None:
    def ask(index: int) -> int:
        answer = complete(live_server, f"{index} times two is", max_tokens=4)
        tokens: int = answer["usage"]["completion_tokens"]
        return tokens

    with ThreadPoolExecutor(80) as pool:
        counts = list(pool.map(ask, range(80)))
    assert all(1 <= count <= 4 for count in counts)
    wait_until(lambda: live_server.metric("atom_lite:num_requests_running") == 0, 3, "nothing runs")


def test_log_of_the_shared_server_holds_no_error(live_server: Server) -> None:
    text = live_server.log_text()
    assert "Traceback" not in text
    assert "ERROR" not in text
