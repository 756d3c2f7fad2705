"""The server under load: what it is called, which fields it takes, how it counts tokens.

OpenAI-compatible servers differ in what they accept beyond OpenAI's fields (vLLM takes
`ignore_eos` and `min_tokens`, transformers serve answers 422 to both) and in whether they offer
`/tokenize`. All of this is found out once, by probe requests before anything is measured; a run
then sends every server the richest body that it accepts and reports which one that was.

Runs in the benchmark's process. Source of the differences: vLLM 0.33, llama.cpp's server and
transformers serve 5.24.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from benchmarks.prompts import INSTRUCTION, PromptMaker, WordLine
from benchmarks.stream_client import LoadError, RequestRecord, StreamClient

if TYPE_CHECKING:
    from collections.abc import Callable

PROBE_OUTPUT_TOKENS = 16
PROBE_SECONDS = 180.0  # a server may load its model at the first request
CALIBRATION_WORDS = (64, 320)
REFUSALS = (400, 422)
PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}

# From rich to poor; the first that a server accepts is used.
_FIELD_SETS: tuple[tuple[str, ...], ...] = (
    ("include_usage", "continuous_usage_stats", "ignore_eos", "min_tokens"),
    ("include_usage", "ignore_eos"),
    ("include_usage",),
    (),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """What a server was found to understand; goes into the report."""

    fields: tuple[str, ...]
    counts_usage: bool  # else chunks are counted as tokens
    running_usage: bool  # usage on every chunk, when asked
    fixed_length: bool  # the probe gave exactly the tokens that it asked for
    exact_prompts: bool  # /tokenize sets prompt lengths


@dataclass(frozen=True, slots=True)
class Target:
    """A server that answered its probes."""

    client: StreamClient
    model: str
    endpoint: str
    dialect: Dialect
    line: WordLine
    version: str | None = None
    probes: list[RequestRecord] = field(default_factory=list, repr=False)

    def body(
        self, prompt: str, output_tokens: int, *, running_usage: bool = False
    ) -> dict[str, Any]:
        """A streaming request for `output_tokens` greedy tokens, no more and no fewer.

        Args:
            prompt: user message, or the raw prompt on the completions endpoint.
            output_tokens: wanted length.
            running_usage: ask for usage on every chunk, for streams that may be cut off.
        """
        fields = self.dialect.fields
        if not (running_usage and self.dialect.running_usage):
            fields = tuple(name for name in fields if name != "continuous_usage_stats")
        return _body(self.endpoint, self.model, prompt, output_tokens, fields)

    async def stream(self, prompt: str, output_tokens: int, deadline: float) -> RequestRecord:
        """Send one request and record it whole."""
        body = self.body(prompt, output_tokens)
        return await self.client.stream(PATHS[self.endpoint], body, deadline)

    async def stream_into(
        self,
        record: RequestRecord,
        prompt: str,
        output_tokens: int,
        deadline: float,
        on_first_token: Callable[[], None],
    ) -> None:
        """Send one request that the caller may cancel; `record` is written as it goes."""
        body = self.body(prompt, output_tokens, running_usage=True)
        await self.client.stream(
            PATHS[self.endpoint], body, deadline, record=record, on_first_token=on_first_token
        )

    async def count_tokens(self, prompt: str) -> int:
        """Prompt tokens by the server's `/tokenize`."""
        status, count = await _tokenize(self.client, self.endpoint, self.model, prompt)
        if count is None:
            reason = f"HTTP {status}" if status else "no answer"
            raise LoadError(f"POST /tokenize gives no count any more ({reason}); is the server up?")
        return count

    def prompt_maker(self, seed: int, *, ask_server: bool = True) -> PromptMaker:
        """A maker of prompts that are measured in this server's tokens.

        Args:
            seed: same seed, same prompts.
            ask_server: False for prompts that are made while something is being timed.
        """
        count = self.count_tokens if self.dialect.exact_prompts and ask_server else None
        return PromptMaker(seed, self.line, count)

    def describe(self) -> dict[str, Any]:
        """For the JSON report."""
        return {
            "model": self.model,
            "endpoint": self.endpoint,
            "version": self.version,
            "dialect": asdict(self.dialect),
        }


async def connect(client: StreamClient, model: str | None, endpoint: str) -> Target:
    """Find out what the server behind `client` is; also warms it up.

    Raises:
        LoadError: it does not answer, has no such model, or refuses the plainest request.
    """
    model = model or await _first_model(client)
    fields, probe = await _negotiate(client, model, endpoint)
    _, count = await _tokenize(client, endpoint, model, "time year people")
    dialect = Dialect(
        fields=fields,
        counts_usage=probe.usage is not None,
        running_usage="continuous_usage_stats" in fields and probe.num_usages > 2,
        fixed_length=probe.output_tokens == PROBE_OUTPUT_TOKENS,
        exact_prompts=count is not None,
    )
    line = WordLine()
    if dialect.counts_usage:
        line = await _calibrate(client, model, endpoint, fields)
    return Target(client, model, endpoint, dialect, line, await _version(client), [probe])


async def _first_model(client: StreamClient) -> str:
    status, answer = await client.fetch("GET", "/v1/models")
    if status == 0:
        raise LoadError(f"the server does not answer: {answer.decode('utf-8', 'replace')}")
    try:
        return str(msgspec.json.decode(answer)["data"][0]["id"])
    except (msgspec.DecodeError, KeyError, IndexError, TypeError) as error:
        raise LoadError(f"GET /v1/models (HTTP {status}) names no model; give --model") from error


async def _version(client: StreamClient) -> str | None:
    status, answer = await client.fetch("GET", "/version")
    if status != 200:
        return None
    try:
        return str(msgspec.json.decode(answer)["version"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return None


async def _negotiate(
    client: StreamClient, model: str, endpoint: str
) -> tuple[tuple[str, ...], RequestRecord]:
    """The richest field set that is accepted, and the probe that showed it."""
    record = None
    for fields in _FIELD_SETS:
        body = _body(endpoint, model, "Say something." + INSTRUCTION, PROBE_OUTPUT_TOKENS, fields)
        record = await client.stream(PATHS[endpoint], body, time.perf_counter() + PROBE_SECONDS)
        if record.error is None:
            return fields, record
        if record.status not in REFUSALS:
            break
    assert record is not None
    raise LoadError(f"a plain request to {PATHS[endpoint]} failed: {record.error}")


async def _calibrate(
    client: StreamClient, model: str, endpoint: str, fields: tuple[str, ...]
) -> WordLine:
    """Words to tokens, from the usage of two requests of known numbers of words."""
    points = []
    for words in CALIBRATION_WORDS:
        # a per-word line of one token a word makes exactly `words` words
        prompt = await PromptMaker(words, WordLine(), None).make("calibrate", words)
        body = _body(endpoint, model, prompt, 1, fields)
        record = await client.stream(PATHS[endpoint], body, time.perf_counter() + PROBE_SECONDS)
        if record.error is not None or not record.prompt_tokens:
            raise LoadError(f"a probe of {words} words failed: {record.error or 'no usage'}")
        points.append((words, record.prompt_tokens))
    return WordLine.through(points[0], points[1])


async def _tokenize(
    client: StreamClient, endpoint: str, model: str, prompt: str
) -> tuple[int, int | None]:
    """HTTP status, and the templated prompt's count by a vLLM-style `/tokenize` if it has one."""
    body: dict[str, Any] = {"model": model}
    if endpoint == "chat":
        body |= {"messages": [{"role": "user", "content": prompt}]}
    else:
        body |= {"prompt": prompt}
    status, answer = await client.fetch("POST", "/tokenize", body)
    if status != 200:
        return status, None
    try:
        return status, int(msgspec.json.decode(answer)["count"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return status, None  # llama.cpp has an endpoint of that name with another body


def _body(
    endpoint: str, model: str, prompt: str, output_tokens: int, fields: tuple[str, ...]
) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": model,
        "stream": True,
        "temperature": 0,
        "max_tokens": output_tokens,
    }
    if endpoint == "chat":
        body["messages"] = [{"role": "user", "content": prompt}]
    else:
        body["prompt"] = prompt
    if "include_usage" in fields:
        body["stream_options"] = {"include_usage": True}
        if "continuous_usage_stats" in fields:
            body["stream_options"]["continuous_usage_stats"] = True
    if "ignore_eos" in fields:
        body["ignore_eos"] = True
    if "min_tokens" in fields:
        body["min_tokens"] = output_tokens
    return body
