"""Reported failures of other servers, replayed over HTTP with exact token splits.

The model says what it is told to (`--load-format scripted`) with the tokenizer of SmolLM2, under
the real engine. Each test names the kind of failure; the ids are SmolLM2's.
"""

from __future__ import annotations

import json
import re
import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.live_servers import Server, start_scripted, stop_unhurt, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

END_OF_TURN, END_OF_TEXT = 2, 0
DEFGHIJ = [33203, 23960, 57, 58]  # DEF GH I J
SMILE = [40303, 218]  # " " and a smiling face of two tokens


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, smollm2_gguf: Path) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("scripted")
    ends = {"eos_token_id": [END_OF_TURN, END_OF_TEXT]}
    (directory / "generation_config.json").write_text(json.dumps(ends))
    server = start_scripted(directory, smollm2_gguf)
    yield server
    stop_unhurt(server)


@dataclass
class Answer:
    text: str
    deltas: list[str]
    finish_reason: str
    stop_reason: str | int | None
    usage: dict[str, Any]


def say(server: Server, script: list[int], **fields: Any) -> Answer:
    """What a client reads of a script: whole and as a stream, which must agree."""
    body = {"prompt": "x", "vllm_xargs": {"script": script}, "temperature": 0, "max_tokens": 64}
    body |= fields
    url = server.base_url + "/v1/completions"
    whole = httpx.post(url, json=body, timeout=60)
    assert whole.status_code == 200, whole.text
    choice = whole.json()["choices"][0]
    streamed = httpx.post(
        url, json=body | {"stream": True, "stream_options": {"include_usage": True}}, timeout=60
    )
    payloads = [line[6:] for line in streamed.text.splitlines() if line]
    assert payloads.pop() == "[DONE]"
    events = [json.loads(payload) for payload in payloads]
    with_usage = [event for event in events if event["usage"] is not None]
    assert with_usage == events[-1:]
    assert events[-1]["choices"] == []
    deltas = [event["choices"][0]["text"] for event in events[:-1]]
    last = events[-2]["choices"][0]
    assert "".join(deltas) == choice["text"]
    assert last["finish_reason"] == choice["finish_reason"]
    assert last["stop_reason"] == choice["stop_reason"]
    for count in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert events[-1]["usage"][count] == whole.json()["usage"][count]
    return Answer(
        choice["text"], deltas, choice["finish_reason"], choice["stop_reason"], events[-1]["usage"]
    )


def ids_of(server: Server, text: str) -> list[int]:
    body = {"prompt": text, "add_special_tokens": False}
    ids: list[int] = httpx.post(server.base_url + "/tokenize", json=body).json()["tokens"]
    return ids


@pytest.mark.parametrize(
    ("text", "stops", "shown", "matched"),
    [
        ("one two three four five six", ["two three four five"], "one ", 0),
        (" x\nObservation: y", ["Observation"], " x\n", 0),
        (" Alice is", ["\n", "Alice:"], " Alice is", None),
        ("Observing", ["Observation"], "Observing", None),
        ("a b c", ["c", "b c"], "a ", 1),
        ("hi \N{GRINNING FACE}!", ["\N{GRINNING FACE}"], "hi ", 0),
        ("no stop here", ["a very long stop string of more than sixty characters" * 2], None, None),
    ],
)
def test_stop_strings_of_many_tokens_neither_leak_nor_eat(
    server: Server, text: str, stops: list[str], shown: str | None, matched: int | None
) -> None:
    answer = say(server, ids_of(server, text), stop=stops)
    assert answer.text == (text if shown is None else shown)
    assert answer.finish_reason == "stop"
    assert answer.stop_reason == (None if matched is None else stops[matched])


@pytest.mark.parametrize(
    ("stop", "text", "num_tokens"),
    [("GH", "DEF", 2), ("FGH", "DE", 2), ("GHI", "DEF", 3), ("IJ", "DEFGH", 4), ("E", "D", 1)],
)
def test_stop_that_begins_or_ends_inside_a_token_cuts_there(
    server: Server, stop: str, text: str, num_tokens: int
) -> None:
    answer = say(server, DEFGHIJ, stop=stop)
    assert (answer.text, answer.stop_reason) == (text, stop)
    assert answer.usage["completion_tokens"] == num_tokens
    kept = say(server, DEFGHIJ, stop=stop, include_stop_str_in_output=True)
    assert kept.text == text + stop


def test_min_tokens_holds_back_every_end(server: Server) -> None:
    for end, fields in (
        (END_OF_TURN, {}),
        (END_OF_TEXT, {}),
        (DEFGHIJ[0], {"stop_token_ids": [DEFGHIJ[0]]}),
    ):
        assert say(server, [end] * 20, **fields).usage["completion_tokens"] == 1
        held = say(server, [end] * 20, min_tokens=8, **fields)
        assert held.usage["completion_tokens"] >= 8
        assert held.finish_reason == "stop"


@pytest.mark.parametrize(
    "text",
    [
        "hi \N{GRINNING FACE} \u65e5\u672c\u8a9e Zo\u00eb",
        "\N{MAN}\u200d\N{WOMAN}\u200d\N{GIRL}",
        "\U0001f1eb\U0001f1f7 e\u0301 \u05e9\u05dc\u05d5\u05dd",
    ],
)
def test_characters_of_many_tokens_are_never_shown_in_parts(server: Server, text: str) -> None:
    script = ids_of(server, text)
    answer = say(server, script, max_tokens=len(script))
    assert answer.text == text
    assert not any("\ufffd" in delta for delta in answer.deltas)
    assert answer.usage["completion_tokens"] == len(script)
    assert answer.finish_reason == "length"


def test_half_a_character_at_the_end_is_shown_as_such(server: Server) -> None:
    assert say(server, SMILE[:1], max_tokens=1).text.endswith("\ufffd")


def test_nul_does_not_cut_the_prompt(server: Server) -> None:
    counts = [
        say(server, DEFGHIJ, prompt=prompt).usage["prompt_tokens"] for prompt in ("a", "a\0b")
    ]
    assert counts[1] > counts[0]


def test_cached_tokens_are_told_in_a_stream_too(server: Server) -> None:
    prompt = ids_of(server, "cached tokens in both modes " * 10)
    answer = say(server, DEFGHIJ, prompt=prompt)  # the stream is the second with this prompt
    cached = answer.usage["prompt_tokens_details"]["cached_tokens"]
    assert cached == (len(prompt) - 1) // 16 * 16 > 0


def listed(server: Server, script: list[int], **fields: Any) -> list[dict[str, Any]]:
    """The choices of a chat with log probabilities, whole and as a stream, which must agree."""
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 64}
    body |= {"vllm_xargs": {"script": script}, "logprobs": True, "return_token_ids": True} | fields
    url = server.base_url + "/v1/chat/completions"
    whole = httpx.post(url, json=body, timeout=60)
    assert whole.status_code == 200, whole.text
    streamed = httpx.post(url, json=body | {"stream": True}, timeout=60)
    lines = [line[6:] for line in streamed.text.splitlines() if line]
    assert lines.pop() == "[DONE]"
    choices: list[dict[str, Any]] = whole.json()["choices"]
    parts = [part for line in lines for part in json.loads(line)["choices"]]
    for choice in choices:
        mine = [part for part in parts if part["index"] == choice["index"]]
        told = [part["logprobs"] or {"content": []} for part in mine]
        entries = [entry for some in told for entry in some["content"]]
        assert entries == choice["logprobs"]["content"]
        ids = [each for part in mine for each in part.get("token_ids", [])]
        assert ids == choice["token_ids"]
        assert len(choice["token_ids"]) == len(choice["logprobs"]["content"])
    return choices


def test_lists_beside_a_text_end_where_a_stop_cuts_it(server: Server) -> None:
    for text, num_tokens in (("GH", 1), ("FGH", 1), ("HI", 2), ("D", 0), ("zz", 5)):
        (choice,) = listed(server, DEFGHIJ, stop=text)
        assert choice["token_ids"][:4] == DEFGHIJ[:num_tokens]
        assert len(choice["token_ids"]) == num_tokens  # the fifth is EOS


def test_bytes_of_parts_of_characters_are_their_own(server: Server) -> None:
    (choice,) = listed(server, SMILE, max_tokens=2, top_logprobs=1)
    content = choice["logprobs"]["content"]
    assert [entry["bytes"] for entry in content] == [[32, 240, 159, 152], [128]]
    assert [entry["top_logprobs"][0]["bytes"] for entry in content] == [
        [32, 240, 159, 152],
        [128],
    ]


def test_every_choice_of_several_lists_all_of_its_tokens(server: Server) -> None:
    choices = listed(server, [*DEFGHIJ, *SMILE], n=3, top_logprobs=0)
    assert [len(choice["token_ids"]) for choice in choices] == [7, 7, 7]


def test_impossible_tokens_leave_the_json_finite(server: Server) -> None:
    for fields in ({"top_k": 1}, {"allowed_token_ids": [5]}, {"logit_bias": {"5": 100}}):
        (choice,) = listed(server, DEFGHIJ, top_logprobs=5, max_tokens=3, **fields)
        for entry in choice["logprobs"]["content"]:
            for each in (entry, *entry["top_logprobs"]):
                assert -9999.0 <= each["logprob"] <= 0


def test_echo_needs_no_output(server: Server) -> None:
    for fields in ({"logprobs": 1}, {}, {"logprobs": 1, "n": 2}):
        body = {"prompt": "hello world", "echo": True, "max_tokens": 0} | fields
        reply = httpx.post(server.base_url + "/v1/completions", json=body, timeout=60).json()
        assert reply["usage"]["completion_tokens"] == 0
        for choice in reply["choices"]:
            assert (choice["text"], choice["finish_reason"]) == ("hello world", "length")
            if fields:
                lists = choice["logprobs"]
                assert lists["token_logprobs"][0] is None
                assert len(lists["token_logprobs"]) == reply["usage"]["prompt_tokens"]
                assert lists["text_offset"] == [0, 5]


def test_former_names_of_structured_output_are_not_ignored(server: Server) -> None:
    """The model would say something else; each name alone must keep it from that."""
    script = ids_of(server, "Sure! Here it is")
    for fields in (
        {"guided_choice": ["yes"]},
        {"guided_regex": "y(es)"},
        {"guided_grammar": 'root ::= "yes"'},
    ):
        answer = say(server, script, **fields)
        assert (answer.text, answer.finish_reason) == ("yes", "stop"), fields
    json_text = say(server, script, guided_json={"const": "yes"}).text
    assert json.loads(json_text) == "yes"


BAD: list[tuple[str, dict[str, Any]]] = [
    ("stop_token_ids", {"stop_token_ids": [151645]}),
    ("logit_bias", {"logit_bias": {"999999": 1}}),
    ("allowed_token_ids", {"allowed_token_ids": [49152]}),
    ("logprobs", {"logprobs": 21}),
    ("n", {"n": 129}),
    ("use_beam_search", {"use_beam_search": True}),
    ("guided_json", {"guided_json": {"type": "objekt"}}),
    ("guided_json", {"guided_json": {"type": "array", "uniqueItems": True}}),
    ("prompt", {"prompt": [49152]}),
    ("max_tokens", {"max_tokens": 10**9}),
    ("vllm_xargs.script", {"vllm_xargs": {"script": [10**6]}}),
    ("stop", {"stop": ["x" * 1025] * 65}),
]


@pytest.mark.parametrize("stream", [False, True])
def test_bad_requests_are_a_400_and_the_engine_goes_on(server: Server, stream: bool) -> None:
    url = server.base_url + "/v1/completions"
    for param, fields in BAD:
        reply = httpx.post(url, json={"prompt": "x", "stream": stream} | fields)
        assert reply.status_code == 400, (fields, reply.text)
        assert str(reply.json()["error"]["param"]).startswith(param)
    for field in (r'"prompt": "\ud83d"', r'"prompt": "x", "stop": "\udc00"'):
        reply = httpx.post(
            url,
            content="{" + field + ', "stream": ' + json.dumps(stream) + "}",
            headers={"content-type": "application/json"},
        )
        assert reply.status_code == 400
    call = {"type": "function", "id": "1", "function": {"name": "f", "arguments": "{"}}
    reply = httpx.post(
        server.base_url + "/v1/chat/completions",
        json={"messages": [{"role": "assistant", "tool_calls": [call]}], "stream": stream},
    )
    assert reply.status_code == 400
    assert say(server, DEFGHIJ).text == "DEFGHIJ"


def test_huge_bodies_are_refused_whole_or_in_chunks(server: Server) -> None:
    url = server.base_url + "/v1/completions"
    huge = b'{"prompt": "' + b"x" * (20 << 20) + b'"}'
    for content in (huge, (huge[at : at + 65536] for at in range(0, len(huge), 65536))):
        headers = {"content-type": "application/json"}
        try:
            reply = httpx.post(url, content=content, headers=headers, timeout=60)
        except httpx.WriteError:
            continue  # the answer came, and the connection went, before all was sent
        assert reply.status_code == 413
        assert reply.json()["error"]["code"] == "request_too_large"
    assert say(server, DEFGHIJ).text == "DEFGHIJ"


def test_one_request_id_may_be_used_by_many_at_once(server: Server) -> None:
    with ThreadPoolExecutor(4) as pool:
        answers = list(
            pool.map(lambda _: say(server, DEFGHIJ, request_id="the-same").text, range(4))
        )
    assert answers == ["DEFGHIJ"] * 4


def test_clients_that_leave_at_any_point_leave_nothing_behind(server: Server) -> None:
    host, port = server.base_url.removeprefix("http://").split(":")
    body = json.dumps(
        {"prompt": "x", "max_tokens": 3000, "ignore_eos": True, "stream": True, "n": 4}
    ).encode()
    head = (
        b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n" % len(body)
    )
    request = head + body
    cuts = (0, 5, len(head) - 2, len(head), len(head) + 9, len(request) - 1, len(request))
    for cut in cuts:
        for reset in (False, True):
            client = socket.create_connection((host, int(port)))
            client.sendall(request[:cut])
            if reset:  # a killed client: no goodbye, data unread
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
    wait_until(lambda: server.metric("atom_lite:num_requests_running") == 0, 10, "nothing runs")
    wait_until(
        lambda: httpx.get(server.base_url + "/load").json()["server_load"] == 0, 10, "none is open"
    )
    assert server.metric("atom_lite:num_requests_waiting") == 0
    assert server.metric("atom_lite:kv_cache_usage_perc") == 0


def leave_after_the_first_event(server: Server, **fields: Any) -> None:
    script = {"script": DEFGHIJ * 750}  # without one it says EOS, which has no text to stream
    body = {"prompt": "x", "max_tokens": 3000, "stream": True, "vllm_xargs": script} | fields
    with httpx.stream("POST", server.base_url + "/v1/completions", json=body, timeout=60) as reply:
        next(reply.iter_lines())


def count_aborts(server: Server) -> float:
    return server.metric("atom_lite:request_success_total", finished_reason="abort")


def test_case_44_older_names_of_structured_output_are_kept_to(server: Server) -> None:
    for stream in (False, True):
        fields = {"guided_choice": ["yes"], "stream": stream, "prompt": "x", "max_tokens": 9}
        reply = httpx.post(server.base_url + "/v1/completions", json=fields, timeout=60)
        assert "".join(re.findall(r'"text":"(.*?)"', reply.text)) == "yes"


def test_case_50_all_choices_of_a_client_that_left_stop(server: Server) -> None:
    before = count_aborts(server)
    leave_after_the_first_event(server, n=4)
    wait_until(lambda: count_aborts(server) == before + 4, 10, "all four are counted")
    wait_until(lambda: server.metric("atom_lite:num_requests_running") == 0, 5, "nothing runs")
    assert server.metric("atom_lite:kv_cache_usage_perc") == 0


def test_case_86_an_abort_counts_in_every_metric_of_requests_once(server: Server) -> None:
    names = (
        *("e2e_request_latency_seconds_count", "request_generation_tokens_count"),
        *("request_prompt_tokens_count", "prompt_tokens_total"),
    )
    before = [server.metric(f"atom_lite:{name}") for name in names]
    aborts = count_aborts(server)
    leave_after_the_first_event(server, prompt=[5])
    wait_until(lambda: count_aborts(server) == aborts + 1, 10, "the abort is counted")
    assert [server.metric(f"atom_lite:{name}") for name in names] == [n + 1 for n in before]


def test_two_hundred_at_once_are_all_answered_and_counted_once(server: Server) -> None:
    def count(name: str) -> float:
        return server.metric(f"atom_lite:{name}_seconds_count")

    names = ("time_to_first_token", "e2e_request_latency")
    before = [count(name) for name in names]
    body = {"prompt": "x", "vllm_xargs": {"script": DEFGHIJ}, "max_tokens": 3, "temperature": 0}

    with (
        httpx.Client(
            base_url=server.base_url, timeout=120, limits=httpx.Limits(max_connections=200)
        ) as client,
        ThreadPoolExecutor(200) as pool,
    ):
        replies = list(pool.map(lambda _: client.post("/v1/completions", json=body), range(200)))
    assert {reply.status_code for reply in replies} == {200}
    assert {reply.json()["choices"][0]["text"] for reply in replies} == {"DEFGHI"}
    assert [count(name) for name in names] == [value + 200 for value in before]
