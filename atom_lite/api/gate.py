"""The outer wall of the application: request id, API key, request metrics, the last resort.

Plain ASGI, because Starlette's BaseHTTPMiddleware would put a queue and two task switches between
every streamed chunk and the socket.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import time
import uuid
from typing import TYPE_CHECKING

from atom_lite.api.faults import CLIENT_CLOSED_REQUEST, bug_response, error_response

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from atom_lite.observability.metrics import Metrics

OPEN_PATHS = frozenset({"/health", "/ping", "/version", "/metrics"})
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_REQUEST_ID = re.compile(rb"[!-~]{1,256}")


class Gate:
    """Names each request, lets in those with a key, and measures them all.

    Args:
        app: what is behind.
        api_keys: accepted keys; none means open to all.
        metrics: where requests are counted.
    """

    def __init__(self, app: ASGIApp, *, api_keys: tuple[str, ...], metrics: Metrics) -> None:
        self._app = app
        # Digests have one length, so comparing them tells nothing about a key's.
        self._key_digests = [_digest(key.encode()) for key in api_keys]
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection event."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        method = scope["method"] if scope["method"] in _METHODS else "OTHER"
        if method == "HEAD":  # of every GET; the HTTP server leaves the body out
            scope = {**scope, "method": "GET"}
        state = scope.setdefault("state", {})
        state["request_id"] = _request_id(scope)
        status = CLIENT_CLOSED_REQUEST
        answered = False
        started = time.perf_counter()

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                nonlocal status, answered
                status, answered = message["status"], True
                named = (b"x-request-id", state["request_id"].encode())
                message["headers"] = [*message.get("headers", ()), named]
            await send(message)

        try:
            if self._admits(scope):
                await self._app(scope, receive, send_named)
            else:
                await _unauthorized(scope, receive, send_named)
        except Exception:
            if not answered:
                await bug_response()(scope, receive, send_named)
            status = 500
            raise  # what is outside logs the traceback, and ends an answer that has begun
        finally:
            seconds = time.perf_counter() - started
            self._metrics.observe_http(_handler(scope), method, status, seconds)

    def _admits(self, scope: Scope) -> bool:
        if not self._key_digests or scope["method"] == "OPTIONS":
            return True
        if scope["path"].removeprefix(scope.get("root_path", "")) in OPEN_PATHS:
            return True
        given = _digest(_key_of(scope))
        # All are compared, always: the time must not tell which one was close.
        matches = [hmac.compare_digest(given, digest) for digest in self._key_digests]
        return any(matches)


def request_id_of(request: Request) -> str:
    """The id that this request goes by: its header's, or a new one."""
    request_id: str = request.scope["state"]["request_id"]
    return request_id


def rename_request(request: Request, request_id: str) -> None:
    """Let an id from the body take the place of the header's."""
    request.scope["state"]["request_id"] = request_id


def _request_id(scope: Scope) -> str:
    given = _header(scope, b"x-request-id")
    if given is not None and _REQUEST_ID.fullmatch(given):
        return given.decode("ascii")
    return uuid.uuid4().hex


def _key_of(scope: Scope) -> bytes:
    scheme, _, key = (_header(scope, b"authorization") or b"").partition(b" ")
    if scheme.lower() == b"bearer":
        return key.strip()
    return _header(scope, b"x-api-key") or b""


def _header(scope: Scope, name: bytes) -> bytes | None:
    return next((value for key, value in scope["headers"] if key == name), None)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _handler(scope: Scope) -> str:
    """The route's template: raw paths would make a series per made-up URL."""
    return getattr(scope.get("route"), "path", "none")


async def _unauthorized(scope: Scope, receive: Receive, send: Send) -> None:
    response = error_response(
        401, "A valid API key is needed: send it as a Bearer token", code="invalid_api_key"
    )
    response.headers["www-authenticate"] = "Bearer"
    await response(scope, receive, send)
