"""A tiny OpenAI-compatible server over real sockets, for tests of clients.

It generates numbered words instead of tokens: one word is one token. Its behaviour is a value
(`Behaviour`), so a test says in one place what kind of server it talks to. Runs on the test's own
event loop; listens on a free port of 127.0.0.1.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

TEMPLATE_TOKENS = 7  # what a chat template adds to the words of a message
MODEL = "fake-model"


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """What kind of server this is.

    Args:
        tokens_per_chunk: words in one event.
        usage: "final" sends a usage event at the end when asked; "running" also one in each
            chunk when asked; "finish" puts it, unasked, into the finish chunk; "none" never.
        refused: request fields that are answered with 422.
        stops_after: the model's own end, unless ignore_eos is asked for.
        hang_after: stop sending after so many words and keep the connection.
        silent_above: send nothing when more than so many tokens are asked for.
        break_after: close the connection after so many words.
        error_after: send an error event after so many words.
        status: answer everything on the completion paths with this status.
        chunked: else the body ends with the connection.
        newline: line end inside the stream.
        has_tokenize: offers /tokenize.
        done: ends the stream with [DONE].
    """

    tokens_per_chunk: int = 1
    usage: str = "final"
    refused: tuple[str, ...] = ()
    stops_after: int | None = None
    hang_after: int | None = None
    silent_above: int | None = None
    break_after: int | None = None
    error_after: int | None = None
    status: int = 200
    chunked: bool = True
    newline: str = "\n"
    has_tokenize: bool = False
    done: bool = True


@dataclass
class FakeServer:
    """A running server; `requests` holds (path, body) of all completion requests."""

    behaviour: Behaviour
    base_url: str = ""
    requests: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    headers: list[str] = field(default_factory=list)
    open_streams: int = 0
    most_open_streams: int = 0

    async def serve_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            method, path, _ = head.split(" ", 2)
            length = next(
                (
                    int(line[15:])
                    for line in head.split("\r\n")
                    if line.startswith("Content-Length")
                ),
                0,
            )
            body = json.loads(await reader.readexactly(length) or b"{}")
            self.headers.append(head)
            await self._answer(writer, method, path, body)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client left, as some tests want
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _answer(
        self, writer: asyncio.StreamWriter, method: str, path: str, body: dict[str, Any]
    ) -> None:
        if path == "/v1/models":
            await _send_json(writer, 200, {"data": [{"id": MODEL}]})
        elif path == "/version":
            await _send_json(writer, 200, {"version": "1.2.3"})
        elif path == "/tokenize" and self.behaviour.has_tokenize:
            await _send_json(writer, 200, {"count": _prompt_tokens(body)})
        elif method == "POST" and path.endswith("/completions"):
            await self._complete(writer, path, body)
        else:
            await _send_json(writer, 404, {"error": {"message": "no such path"}})

    async def _complete(
        self, writer: asyncio.StreamWriter, path: str, body: dict[str, Any]
    ) -> None:
        self.requests.append((path, body))
        refused = sorted(set(body) & set(self.behaviour.refused))
        if refused:
            await _send_json(writer, 422, {"detail": f"Unexpected fields: {refused}"})
        elif self.behaviour.status != 200:
            await _send_json(writer, self.behaviour.status, {"error": {"message": "overloaded"}})
        else:
            self.open_streams += 1
            self.most_open_streams = max(self.most_open_streams, self.open_streams)
            try:
                await self._stream(writer, path, body)
            finally:
                self.open_streams -= 1

    async def _stream(self, writer: asyncio.StreamWriter, path: str, body: dict[str, Any]) -> None:
        behaviour = self.behaviour
        send = _EventWriter(writer, chunked=behaviour.chunked, newline=behaviour.newline)
        await send.start()
        chat = "chat" in path
        if chat:
            await send.event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        total = self._length(body)
        sent = 0
        while sent < total:
            if sent == behaviour.hang_after or sent == self._silent_from(body):
                await asyncio.Event().wait()
            if sent == behaviour.break_after:
                return
            if sent == behaviour.error_after:
                await send.event({"error": {"message": "the engine died"}})
                break
            count = min(behaviour.tokens_per_chunk, total - sent)
            text = "".join(f" {sent + index}" for index in range(count))
            sent += count
            choice: dict[str, Any] = {"delta": {"content": text}} if chat else {"text": text}
            await send.event({"choices": [choice]} | self._running_usage(body, sent))
        finish: dict[str, Any] = {"choices": [{"delta": {}, "finish_reason": "length"}]}
        options = body.get("stream_options") or {}
        if behaviour.usage == "finish":
            finish["usage"] = _usage(body, sent)
        await send.event(finish | self._running_usage(body, sent))
        if options.get("include_usage") and behaviour.usage in ("final", "running"):
            await send.event({"choices": [], "usage": _usage(body, sent)})
        if behaviour.done:
            await send.raw("data: [DONE]")
        await send.end()

    def _length(self, body: dict[str, Any]) -> int:
        asked: int = body["max_tokens"]
        if self.behaviour.stops_after is None or body.get("ignore_eos"):
            return asked
        return min(asked, self.behaviour.stops_after)

    def _silent_from(self, body: dict[str, Any]) -> int | None:
        limit = self.behaviour.silent_above
        return 0 if limit is not None and body["max_tokens"] > limit else None

    def _running_usage(self, body: dict[str, Any], sent: int) -> dict[str, Any]:
        options = body.get("stream_options") or {}
        asked = options.get("continuous_usage_stats")
        return {"usage": _usage(body, sent)} if asked and self.behaviour.usage == "running" else {}


class _EventWriter:
    """Writes server-sent events, with or without chunked framing."""

    def __init__(self, writer: asyncio.StreamWriter, *, chunked: bool, newline: str) -> None:
        self._writer = writer
        self._chunked = chunked
        self._newline = newline

    async def start(self) -> None:
        framing = "Transfer-Encoding: chunked\r\n" if self._chunked else ""
        head = f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n{framing}\r\n"
        self._writer.write(head.encode())
        await self.raw(": a comment that clients must skip")

    async def event(self, value: dict[str, Any]) -> None:
        await self.raw("data: " + json.dumps(value))

    async def raw(self, line: str) -> None:
        data = (line + 2 * self._newline).encode()
        if self._chunked:
            data = f"{len(data):x}\r\n".encode() + data + b"\r\n"
        self._writer.write(data)
        await self._writer.drain()
        await asyncio.sleep(0)  # lets the client read: each event arrives on its own

    async def end(self) -> None:
        if self._chunked:
            self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()


def _prompt_tokens(body: dict[str, Any]) -> int:
    if "messages" in body:
        words = sum(len(message["content"].split()) for message in body["messages"])
        return words + TEMPLATE_TOKENS
    return len(body["prompt"].split())


def _usage(body: dict[str, Any], completion_tokens: int) -> dict[str, Any]:
    prompt_tokens = _prompt_tokens(body)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": 3},
    }


async def _send_json(writer: asyncio.StreamWriter, status: int, value: dict[str, Any]) -> None:
    data = json.dumps(value).encode()
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(data)}"
    writer.write(head.encode() + b"\r\n\r\n" + data)
    await writer.drain()


@asynccontextmanager
async def running(behaviour: Behaviour | None = None) -> AsyncIterator[FakeServer]:
    """A server on a free port, gone when the block ends."""
    fake = FakeServer(behaviour or Behaviour())
    tasks: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        with contextlib.suppress(asyncio.CancelledError):
            await fake.serve_connection(reader, writer)

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    fake.base_url = f"http://{host}:{port}"
    try:
        yield fake
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()
