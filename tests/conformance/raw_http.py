"""HTTP/1.1 as bytes on a socket: what no client library would send can be sent."""

from __future__ import annotations

import http.client
import socket
from dataclasses import dataclass
from typing import Literal

from tests.openapi_document import Answer

Framing = Literal["length", "chunked", "none", "short", "long", "bad_length", "bad_chunk", "both"]
JSON = (b"content-type", b"application/json")
_CHUNK = 1000


@dataclass(frozen=True)
class RawRequest:
    """One request, good or bad.

    Args:
        target: path and query as they go on the wire.
        body: may be empty.
        headers: besides host, connection and what the framing needs.
        framing: how the server learns where the body ends, truly or not.
        blame: the one field that is wrong, where it is one.
    """

    method: str
    target: bytes
    body: bytes = b""
    headers: tuple[tuple[bytes, bytes], ...] = (JSON,)
    framing: Framing = "length"
    blame: str | None = None

    @property
    def well_framed(self) -> bool:
        """Whether the server gets to see the body as it is."""
        return self.framing in ("length", "chunked")

    def encoded(self) -> bytes:
        """All that goes on the wire."""
        head = [self.method.encode() + b" " + self.target + b" HTTP/1.1", b"host: localhost"]
        head.append(b"connection: close")
        head += [name + b": " + value for name, value in self.headers + self._framing_headers()]
        return b"\r\n".join(head) + b"\r\n\r\n" + self._framed_body()

    def _framing_headers(self) -> tuple[tuple[bytes, bytes], ...]:
        size = len(self.body)
        lengths = {"length": size, "both": size, "short": size + 100, "long": size // 2}
        found: list[tuple[bytes, bytes]] = []
        if self.framing in lengths:
            found.append((b"content-length", b"%d" % lengths[self.framing]))
        if self.framing == "bad_length":
            found.append((b"content-length", b"-1"))
        if self.framing in ("chunked", "bad_chunk", "both"):
            found.append((b"transfer-encoding", b"chunked"))
        return tuple(found)

    def _framed_body(self) -> bytes:
        if self.framing == "bad_chunk":
            return b"zz\r\n" + self.body
        if self.framing != "chunked":
            return self.body
        parts = [self.body[at : at + _CHUNK] for at in range(0, len(self.body), _CHUNK)]
        return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def send(address: tuple[str, int], request: RawRequest, *, timeout_seconds: float) -> Answer | None:
    """Send a request and read its answer; None when the server closed without one.

    Raises:
        TimeoutError: when there is no whole answer in time.
    """
    with socket.create_connection(address, timeout=timeout_seconds) as connection:
        try:
            connection.sendall(request.encoded())
            if not request.well_framed:
                connection.shutdown(socket.SHUT_WR)
        except (BrokenPipeError, ConnectionResetError):
            pass  # refused before all was sent; the answer may still be there to read
        response = http.client.HTTPResponse(connection, method=request.method)
        try:
            response.begin()
            body = response.read()
        except (ConnectionError, http.client.RemoteDisconnected, http.client.BadStatusLine):
            return None
        headers = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, headers, body)
