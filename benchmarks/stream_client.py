"""A lean HTTP/1.1 client for token streams: one request, one record of when its tokens came.

Why not httpx: the client shares its cores with the server that it measures, so what it costs
distorts what it shows. Here the bytes go from asyncio's transport to httptools (C) and each event
to a typed msgspec decoder: tens of microseconds a chunk, where httpx and `json` take some hundred.

Runs in the benchmark's process, on its event loop. It must not judge (figures.py does) and must
not know about workloads. A failed request is a record with `error` set, never an exception: one
refused request must not end a run.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast
from urllib.parse import urlsplit

import httptools
import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

ERROR_TEXT_LIMIT = 300  # characters of an error body that a record keeps


class LoadError(Exception):
    """The server cannot be measured; the command line prints it as one line and exits 2."""


class _CachedTokens(msgspec.Struct):
    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    """OpenAI's usage object, as far as a benchmark reads it."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _CachedTokens | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: Usage | None = None
    error: msgspec.Raw | None = None


_decode_chunk = msgspec.json.Decoder(_Chunk).decode


@dataclass(slots=True, kw_only=True)
class RequestRecord:
    """What one request did. Times are `time.perf_counter()` seconds.

    `arrivals` holds one time for each read of the socket that brought new tokens: what a reader of
    the stream sees. Several chunks in one read are one arrival, so a server that sends its tokens
    in bursts shows long gaps, not gaps of zero.
    """

    started: float = 0.0
    arrivals: list[float] = field(default_factory=list)
    ended: float = 0.0
    status: int = 0
    num_chunks: int = 0  # events that brought text or raised the running usage
    num_usages: int = 0  # more than one: the server reports usage as it goes
    usage: Usage | None = None
    finish_reason: str | None = None
    saw_done: bool = False
    error: str | None = None

    @property
    def output_tokens(self) -> int:
        """Tokens by the server's own count; its chunks where it gives none."""
        if self.usage is not None and self.usage.completion_tokens:
            return self.usage.completion_tokens
        return self.num_chunks

    @property
    def prompt_tokens(self) -> int | None:
        """Prompt tokens by the server's count, None where it gives none."""
        return self.usage.prompt_tokens if self.usage is not None else None

    @property
    def cached_tokens(self) -> int | None:
        """Prompt tokens that came from the server's prefix cache, where it says so."""
        details = self.usage.prompt_tokens_details if self.usage is not None else None
        return details.cached_tokens if details is not None else None


class _Sink(Protocol):
    """What an exchange hands its bytes to."""

    def on_status(self, status: int) -> None: ...
    def on_body(self, data: bytes) -> None: ...
    def on_end(self, *, complete: bool) -> None: ...


class BodySink:
    """Keeps a whole body, for small answers."""

    def __init__(self) -> None:
        self.status = 0
        self.body = bytearray()

    def on_status(self, status: int) -> None:
        """Read the status line."""
        self.status = status

    def on_body(self, data: bytes) -> None:
        """Keep a piece."""
        self.body += data

    def on_end(self, *, complete: bool) -> None:
        """Nothing is left to do."""


class StreamSink:
    """Turns a body of server-sent events into a RequestRecord."""

    def __init__(self, record: RequestRecord, on_first_token: Callable[[], None]) -> None:
        self._record = record
        self._on_first_token = on_first_token
        self._pending = bytearray()  # the line that has not ended yet, or the error body

    def on_status(self, status: int) -> None:
        """Read the status line."""
        self._record.status = status

    def on_body(self, data: bytes) -> None:
        """Read every line that `data` completes; all of its tokens arrived now."""
        self._pending += data
        if self._record.status != 200:
            return
        lines = bytes(self._pending).split(b"\n")
        self._pending = bytearray(lines.pop())
        chunks_before = self._record.num_chunks
        for line in lines:
            if line.startswith(b"data:"):
                self._on_event(line[5:].strip())
        if self._record.num_chunks > chunks_before:
            self._record.arrivals.append(time.perf_counter())
            if chunks_before == 0:
                self._on_first_token()

    def _on_event(self, data: bytes) -> None:
        record = self._record
        if data == b"[DONE]":
            record.saw_done = True
            return
        try:
            chunk = _decode_chunk(data)
        except msgspec.DecodeError as error:
            self._fail(f"unreadable event {_shorten(data)!r}: {error}")
            return
        if chunk.error is not None and bytes(chunk.error) != b"null":
            self._fail(_shorten(bytes(chunk.error)))
        brought_tokens = False
        for choice in chunk.choices:
            brought_tokens = brought_tokens or _has_text(choice)
            record.finish_reason = choice.finish_reason or record.finish_reason
        if chunk.usage is not None:
            record.num_usages += 1
            counted = record.usage.completion_tokens if record.usage is not None else 0
            # A running count also shows tokens without text (half a character); a final one does
            # not say when its tokens came.
            running = bool(chunk.choices) and record.finish_reason is None
            brought_tokens |= running and chunk.usage.completion_tokens > counted
            record.usage = chunk.usage
        record.num_chunks += brought_tokens

    def on_end(self, *, complete: bool) -> None:
        """Decide whether what came is a whole answer."""
        record = self._record
        if record.status != 200:
            detail = _shorten(bytes(self._pending)) or "no answer"
            self._fail(f"HTTP {record.status}: {detail}" if record.status else "connection closed")
        elif record.finish_reason is None and not record.saw_done:
            self._fail(f"stream ended after {record.num_chunks} chunks without a finish_reason")
        elif not complete and not record.saw_done:
            self._fail(f"connection lost after {record.num_chunks} chunks")

    def _fail(self, message: str) -> None:
        self._record.error = self._record.error or message


def _has_text(choice: _Choice) -> bool:
    delta = choice.delta
    if delta is None:
        return bool(choice.text)
    return bool(delta.content or delta.reasoning_content or delta.reasoning)


def _shorten(data: bytes) -> str:
    text = data.decode("utf-8", "replace")
    return text if len(text) <= ERROR_TEXT_LIMIT else text[:ERROR_TEXT_LIMIT] + "..."


class _Exchange(asyncio.Protocol):
    """One request and its answer on a connection of its own."""

    def __init__(self, request: bytes, sink: _Sink) -> None:
        self._request = request
        self._sink = sink
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the whole request (asyncio)."""
        transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Hand bytes to the parser, which calls `on_*` below (asyncio)."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._end(complete=False)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Without a length the end of the connection is the end of the body (asyncio)."""
        self._end(complete=False)

    def on_headers_complete(self) -> None:
        """Read the status (httptools)."""
        self._sink.on_status(self._parser.get_status_code())

    def on_body(self, data: bytes) -> None:
        """Hand on a piece of the body, its chunk framing removed (httptools)."""
        self._sink.on_body(data)

    def on_message_complete(self) -> None:
        """The body is whole (httptools)."""
        self._end(complete=True)

    def _end(self, *, complete: bool) -> None:
        if not self.finished.done():
            self._sink.on_end(complete=complete)
            self.finished.set_result(None)
        if self._transport is not None:
            self._transport.close()


class StreamClient:
    """Sends requests to one server.

    Args:
        base_url: `http://host:port`, with or without a path; a trailing `/v1` is taken off.
        api_key: sent as a Bearer token.
    """

    def __init__(self, base_url: str, api_key: str | None = None) -> None:
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise LoadError(f"--base-url must look like http://host:port, got {base_url!r}")
        self._tls = parts.scheme == "https"
        self._host = parts.hostname
        self._port = parts.port or (443 if self._tls else 80)
        self._prefix = parts.path.rstrip("/").removesuffix("/v1")
        self._api_key = api_key

    async def stream(
        self,
        path: str,
        body: dict[str, Any],
        deadline: float,
        *,
        record: RequestRecord | None = None,
        on_first_token: Callable[[], None] = lambda: None,
    ) -> RequestRecord:
        """POST `body` and record the answer's stream.

        Args:
            path: below the base URL.
            body: the JSON request; must ask for a stream.
            deadline: `perf_counter()` time at which the request is given up.
            record: written as the stream goes, for callers that may cancel; a new one by default.
            on_first_token: called once.
        """
        request = self._request("POST", path, body)
        record = record or RequestRecord()
        record.started = time.perf_counter()
        try:
            async with asyncio.timeout(deadline - time.perf_counter()):
                await self._exchange(request, StreamSink(record, on_first_token))
        except TimeoutError:
            record.error = record.error or "timed out"
        except OSError as error:
            record.error = f"cannot connect: {error}"
        finally:
            record.ended = time.perf_counter()
        return record

    async def fetch(
        self, method: str, path: str, body: dict[str, Any] | None = None, timeout: float = 30.0
    ) -> tuple[int, bytes]:
        """One small request; returns status and body, (0, reason) when nothing answers."""
        sink = BodySink()
        try:
            async with asyncio.timeout(timeout):
                await self._exchange(self._request(method, path, body), sink)
        except (OSError, TimeoutError) as error:
            return 0, str(error).encode()
        return sink.status, bytes(sink.body)

    def _request(self, method: str, path: str, body: dict[str, Any] | None) -> bytes:
        payload = b"" if body is None else msgspec.json.encode(body)
        lines = [
            f"{method} {self._prefix}{path} HTTP/1.1",
            f"Host: {self._host}:{self._port}",
            "Content-Type: application/json",
            f"Content-Length: {len(payload)}",
            "Connection: close",
        ]
        if self._api_key:
            lines.append(f"Authorization: Bearer {self._api_key}")
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + payload

    async def _exchange(self, request: bytes, sink: _Sink) -> None:
        loop = asyncio.get_running_loop()
        transport, exchange = await loop.create_connection(
            lambda: _Exchange(request, sink), self._host, self._port, ssl=self._tls or None
        )
        try:
            await exchange.finished
        finally:
            transport.abort()  # also after a timeout: the server sees that the client left
