"""Structured output from the client to the model and back, with the real model and processes."""

from __future__ import annotations

import json
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

import httpx
import jsonschema
import psutil
import pytest
from openai import BadRequestError, OpenAI
from pydantic import BaseModel, Field

from tests.live_servers import Server, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "kind": {"enum": ["capital", "town"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 3000},
    },
    "required": ["city", "kind", "age"],
}
MESSAGES = [{"role": "user", "content": "Tell me about Paris."}]


def chat(server: Server, **fields: Any) -> httpx.Response:
    body = {"messages": MESSAGES, "max_tokens": 100, "temperature": 0, **fields}
    return httpx.post(server.base_url + "/v1/chat/completions", json=body, timeout=120)


def choice_of(reply: httpx.Response) -> tuple[str, str]:
    assert reply.status_code == 200, reply.text
    (choice,) = reply.json()["choices"]
    return choice["message"]["content"], choice["finish_reason"]


class City(BaseModel):
    name: Annotated[str, Field(max_length=12)]
    kind: Literal["capital", "town"]
    age: Annotated[int, Field(ge=0, le=3000)]


def test_openai_sdk_parses_a_model_of_pydantic(live_server: Server) -> None:
    with OpenAI(base_url=live_server.base_url + "/v1", api_key="unused") as client:
        model = client.models.list().data[0].id
        completion = client.chat.completions.parse(
            model=model,
            messages=[{"role": "user", "content": "Tell me about Paris."}],
            response_format=City,
            max_tokens=100,
            temperature=0,
        )
        parsed = completion.choices[0].message.parsed
        assert isinstance(parsed, City)
        with pytest.raises(BadRequestError, match="uniqueItems"):
            client.chat.completions.create(
                model=model,
                messages=[{"role": "user", "content": "x"}],
                response_format={
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"type": "array", "uniqueItems": True}},
                },
            )


@pytest.mark.parametrize(
    "fields",
    [
        {"guided_json": SCHEMA},
        {"structured_outputs": {"json": SCHEMA, "whitespace_pattern": " "}},
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "c", "schema": SCHEMA},
            }
        },
    ],
    ids=["guided_json", "structured_outputs", "response_format"],
)
def test_schema_is_kept_under_each_name(live_server: Server, fields: dict[str, Any]) -> None:
    text, reason = choice_of(chat(live_server, **fields))
    assert reason == "stop"
    jsonschema.validate(json.loads(text), SCHEMA)


def test_schema_is_kept_in_a_stream_and_at_any_temperature(live_server: Server) -> None:
    body = {
        "messages": MESSAGES,
        "guided_json": SCHEMA,
        "max_tokens": 100,
        "temperature": 1.5,
        "stream": True,
    }
    url = live_server.base_url + "/v1/chat/completions"
    with httpx.stream("POST", url, json=body, timeout=120) as reply:
        lines = [line[6:] for line in reply.iter_lines() if line.startswith("data: ")]
    choices = [json.loads(line)["choices"][0] for line in lines[:-1]]
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    assert choices[-1]["finish_reason"] == "stop"
    jsonschema.validate(json.loads(text), SCHEMA)


@pytest.mark.parametrize(
    ("fields", "takes"),
    [
        ({"choice": ["yes", "no"]}, {"yes", "no"}),
        ({"regex": "[0-9]{3}"}, {str(number).zfill(3) for number in range(1000)}),
        ({"grammar": 'root ::= "a" "b"+ "c"'}, {"a" + "b" * count + "c" for count in range(1, 99)}),
        ({"grammar": 'start: "x" | "y"'}, {"x", "y"}),
    ],
    ids=["choice", "regex", "gbnf", "lark"],
)
def test_other_forms_are_kept(live_server: Server, fields: Any, takes: set[str]) -> None:
    text, reason = choice_of(chat(live_server, structured_outputs=fields, max_tokens=12))
    assert text in takes or reason == "length", (text, reason)


def test_any_json_object_is_one(live_server: Server) -> None:
    fields = {"response_format": {"type": "json_object"}, "max_tokens": 20}
    text, reason = choice_of(chat(live_server, **fields))
    assert text.startswith("{")
    if reason == "stop":
        assert isinstance(json.loads(text), dict)


def test_cut_output_says_length(live_server: Server) -> None:
    text, reason = choice_of(chat(live_server, guided_json=SCHEMA, max_tokens=3))
    assert reason == "length"
    assert text.startswith("{")


@pytest.mark.parametrize("fields", [{"min_tokens": 20}, {"ignore_eos": True}])
def test_complete_grammar_ends_whatever_else_is_asked(
    live_server: Server, fields: dict[str, Any]
) -> None:
    assert choice_of(chat(live_server, guided_choice=["yes"], **fields)) == ("yes", "stop")


def test_several_prompts_and_choices_keep_to_one_grammar(live_server: Server) -> None:
    reply = httpx.post(
        live_server.base_url + "/v1/completions",
        json={"prompt": ["a", "b"], "n": 2, "guided_regex": "(red|green){2}", "temperature": 1},
        timeout=120,
    )
    texts = [choice["text"] for choice in reply.json()["choices"]]
    assert len(texts) == 4
    assert set(texts) <= {"redred", "redgreen", "greenred", "greengreen"}


@pytest.mark.parametrize("stream", [False, True])
def test_grammar_that_cannot_be_compiled_is_a_400(live_server: Server, stream: bool) -> None:
    reply = chat(live_server, guided_regex="(", stream=stream)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "guided_regex"


def slow_grammar() -> str:
    """500 kB that take a compiler several seconds."""
    runs = " | ".join(f'"{"a" * length}"' for length in range(1, 400))
    rules = [f'r{rule} ::= ({runs} | "{rule}")* "b"' for rule in range(6)]
    return "\n".join(["root ::= " + " ".join(f"r{rule}" for rule in range(6)), *rules])


@dataclass
class Stream:
    """One long answer that is read until it is told to stop; when its pieces arrived."""

    server: Server
    arrivals: list[float] = field(default_factory=list)
    started: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)

    def read(self) -> None:
        body = {"prompt": "Once", "max_tokens": 3000, "ignore_eos": True, "stream": True}
        url = self.server.base_url + "/v1/completions"
        with httpx.stream("POST", url, json=body, timeout=60) as reply:
            for line in reply.iter_lines():
                if line.startswith("data: "):
                    self.arrivals.append(time.monotonic())
                if len(self.arrivals) == 50:
                    self.started.set()
                if self.over.is_set():
                    return

    def rate(self, begin: float, end: float) -> float:
        """Pieces a second between two moments."""
        return sum(begin < arrival <= end for arrival in self.arrivals) / (end - begin)


@contextmanager
def streaming(server: Server) -> Iterator[Stream]:
    """A stream that is under way."""
    stream = Stream(server)
    reader = threading.Thread(target=stream.read)
    reader.start()
    try:
        assert stream.started.wait(60)
        yield stream
    finally:
        stream.over.set()
        reader.join()


def ask_slow_grammar(server: Server) -> None:
    reply = chat(server, guided_grammar=slow_grammar())
    assert reply.status_code == 400
    assert "longer than 1.5 s" in reply.json()["error"]["message"]


def test_slow_grammar_is_stopped_in_turns_and_refused_while_a_stream_goes_on(
    start_server: Callable[..., Server],
) -> None:
    server = start_server("--grammar-compile-timeout-seconds", "1.5")
    choice_of(chat(server, guided_choice=["yes"]))  # the compiler is up
    with streaming(server) as stream, ThreadPoolExecutor() as pool:
        asked = time.monotonic()
        refusal = pool.submit(ask_slow_grammar, server)
        wait_until(
            lambda: psutil.STATUS_STOPPED in statuses_of_children(server.grammar_compiler()),
            30,
            "the compiler's child is stopped",
        )
        refusal.result()
        assert stream.rate(asked, time.monotonic()) > 0


def statuses_of_children(process: psutil.Process) -> list[str]:
    statuses: list[str] = []
    for child in process.children():
        with suppress(psutil.NoSuchProcess):
            statuses.append(child.status())
    return statuses


@pytest.mark.full
def test_a_stream_keeps_half_its_pace_beside_a_slow_grammar(
    start_server: Callable[..., Server],
) -> None:
    server = start_server("--grammar-compile-timeout-seconds", "1.5")
    choice_of(chat(server, guided_choice=["yes"]))
    with streaming(server) as stream:
        asked = time.monotonic()
        ask_slow_grammar(server)
        answered = time.monotonic()
        alone, beside = stream.rate(stream.arrivals[0], asked), stream.rate(asked, answered)
    assert beside > 0.5 * alone, (alone, beside)


def test_killed_grammar_compiler_is_replaced_and_a_killed_server_leaves_none(
    start_server: Callable[..., Server],
) -> None:
    server = start_server()
    choice_of(chat(server, guided_choice=["yes"]))
    first = server.grammar_compiler()
    first.kill()
    wait_until(lambda: not first.is_running() or first.status() == "zombie", 10, "it is gone")
    assert choice_of(chat(server, guided_choice=["no"]))[0] == "no"
    second = server.grammar_compiler()
    assert second.pid != first.pid
    processes = [second, server.engine_process()]
    server.signal(signal.SIGKILL)
    server.wait()
    _, alive = psutil.wait_procs(processes, timeout=20)
    assert not alive
