"""What an answer to a request, good or bad, may be; and what a server must be like afterwards."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import httpx
import psutil

from tests.conformance.raw_http import JSON
from tests.live_servers import Server, wait_until

if TYPE_CHECKING:
    from tests.conformance.raw_http import RawRequest
    from tests.openapi_document import Answer, Document

_SETTLE_SECONDS = 30
# Of the HTTP server, before the application sees anything.
_NOT_HTTP = b"Invalid HTTP request received."
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
# Codes of answers that blame a body, not a field.
_OF_THE_WHOLE = ("invalid_json", "request_too_large")
_SHOWN_BYTES = 600


class Judge:
    """Compares answers with the document and with what was sent."""

    def __init__(self, document: Document) -> None:
        self.document = document

    def complaint(self, request: RawRequest, answer: Answer | None) -> str | None:
        """What is wrong with an answer; None where nothing is."""
        try:
            self._check(request, answer)
        except AssertionError as error:
            shown = request.encoded()[:_SHOWN_BYTES]
            return f"{error}\n    request: {shown!r}\n    answer: {str(answer)[:_SHOWN_BYTES]}"
        return None

    def _check(self, request: RawRequest, answer: Answer | None) -> None:
        if answer is None:
            assert not request.well_framed, "no answer"
            return
        assert answer.status < 500, "a server error"
        if answer.status == 400 and answer.body == _NOT_HTTP:
            assert not _is_plain(request), "a proper request was taken for no HTTP"
            return
        assert "x-request-id" in answer.headers
        if answer.status == 307:
            assert answer.headers["location"]
            return
        path = self.document.path_of(request.target.decode("latin-1"))
        method = "GET" if request.method == "HEAD" else request.method
        if answer.status in (404, 405) and (
            path is None or method.lower() not in self.document.document["paths"][path]
        ):
            assert answer.status == (404 if path is None else 405) or not _is_plain(request)
            assert request.method == "HEAD" or self.document.check_error(answer) is None
            return
        if request.method == "HEAD" or (path is None and answer.status == 200):
            return  # no body; or /openapi.json, which is no part of itself
        assert path is not None, "an unknown path is a 404"
        self.document.check(method, path, answer)
        if method == "POST" and request.well_framed:
            self._check_body(path, request, answer)

    def _check_body(self, path: str, request: RawRequest, answer: Answer) -> None:
        """What the document allows may be refused for good reasons, but not the other way round."""
        if answer.status == 200 and "requestBody" in self.document.document["paths"][path]["post"]:
            value = parsed(request.body)
            assert value is not UNREADABLE, "no JSON, and taken"
            assert self.document.accepts(path, value), "taken against the document"
        if answer.status >= 400 and request.blame and answer.error["code"] not in _OF_THE_WHOLE:
            told = f"{answer.error['param']} {answer.error['message']}"
            assert request.blame in told, f"does not name {request.blame!r}"


UNREADABLE = object()


def parsed(body: bytes) -> Any:
    """The JSON value of a body, or UNREADABLE."""
    try:
        return json.loads(body.decode())
    except (ValueError, RecursionError):
        return UNREADABLE


def assert_unhurt(server: Server, *, may_grow_bytes: int, memory_before: list[int]) -> None:
    """Fail unless the server is as healthy, idle and small as before, and has nothing to tell."""
    gauges = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    for name in gauges:
        wait_until(
            lambda name=name: server.metric(f"atom_lite:{name}") == 0,
            _SETTLE_SECONDS,
            f"{name} is 0",
        )
    assert httpx.get(server.base_url + "/health").status_code == 200
    assert httpx.get(server.base_url + "/load").json() == {"server_load": 0}
    log = server.log_text()
    for word in ("Traceback", "ERROR", "CRITICAL", "Exception"):
        assert word not in log, log[max(0, log.index(word) - 2000) :][:6000]
    grown = [now - before for now, before in zip(memory_of(server), memory_before, strict=True)]
    assert max(grown) < may_grow_bytes, f"processes grew by {grown} bytes"


def memory_of(server: Server) -> list[int]:
    """Resident bytes of the frontend and of the engine."""
    frontend = psutil.Process(server.pid)
    return [process.memory_info().rss for process in (frontend, server.engine_process())]


def _is_plain(request: RawRequest) -> bool:
    """Whether nothing about the HTTP itself is odd."""
    return (
        request.method in _METHODS
        and request.well_framed
        and re.fullmatch(rb"(/[\w.]+)+", request.target) is not None
        and request.headers == (JSON,)
    )
