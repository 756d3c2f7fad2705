"""Every way an answer can be an error: OpenAI's nested body, the right status, no leaks.

    RequestError              its own 4xx (503 for overload)
    EngineError               500, or 503 where the request was not started
    unknown path, method      404, 405
    anything else             500 with a fixed text; the cause goes to the log only (`Gate`)

Clients retry 429 and 5xx by themselves, so 429 and 503 carry Retry-After.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

import msgspec
from pydantic_core import PydanticCustomError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from atom_lite.errors import EngineError, RequestError

if TYPE_CHECKING:
    from fastapi import FastAPI
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails
    from starlette.requests import Request

RETRY_AFTER_SECONDS = 1
CONFLICT = "conflict"
CLIENT_CLOSED_REQUEST = 499  # nginx's number; the client never sees it, the metrics do
_MAX_MESSAGE_CHARS = 1000
_MAX_SHOWN_INPUT_CHARS = 60
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
}
_OBJECT_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_FILE_PATH = re.compile(r"(?<![\w:/.])(?:/[\w.@+-]+){2,}")

logger = logging.getLogger(__name__)


def error_body(
    status: int, message: str, *, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """OpenAI's error object for a status."""
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    if status >= 500:  # not written for clients: may quote where our files lie
        message = _FILE_PATH.sub("<path>", message)
    text = sanitise(message)
    return {"error": {"message": text, "type": kind, "param": param, "code": code}}


def error_response(
    status: int, message: str, *, param: str | None = None, code: str | None = None
) -> Response:
    """A JSON error answer."""
    body = msgspec.json.encode(error_body(status, message, param=param, code=code))
    retry = {"retry-after": str(RETRY_AFTER_SECONDS)} if status in (429, 503) else None
    return Response(body, status, headers=retry, media_type="application/json")


def bug_response() -> Response:
    """The answer where our own code failed: its reason is not for clients."""
    return error_response(500, "Internal server error", code="internal_error")


def fault_response(error: RequestError | EngineError) -> Response:
    """The answer that one of our own errors deserves."""
    if isinstance(error, RequestError):
        return error_response(error.status, error.message, param=error.param, code=error.code)
    return error_response(500, str(error), code="engine_error")


def fault_body(error: RequestError | EngineError) -> dict[str, Any]:
    """The same as a body, for a stream that has already started."""
    if isinstance(error, RequestError):
        return error_body(error.status, error.message, param=error.param, code=error.code)
    return error_body(500, str(error), code="engine_error")


def sanitise(message: str) -> str:
    """Take out object addresses and lone surrogates, and bound the length."""
    message = _OBJECT_ADDRESS.sub("", message)
    message = message.encode("utf-8", "backslashreplace").decode()
    if len(message) > _MAX_MESSAGE_CHARS:
        message = message[: _MAX_MESSAGE_CHARS - 3] + "..."
    return message


def shown(value: object) -> str:
    """A client's value as an error message quotes it: ASCII and short."""
    text = ascii(value[:_MAX_SHOWN_INPUT_CHARS] if isinstance(value, str | list) else value)
    if len(text) > _MAX_SHOWN_INPUT_CHARS:
        text = text[: _MAX_SHOWN_INPUT_CHARS - 3] + "..."
    return text


def from_validation(error: ValidationError) -> RequestError:
    """The first complaint of a schema as a 400 that names the field in dotted form.

    Of a union's complaints, one per branch, that of the branch that got furthest is told: it is the
    one that was meant.
    """
    complaints = error.errors(include_url=False)
    field = complaints[0]["loc"][:1]
    same_field = [complaint for complaint in complaints if complaint["loc"][:1] == field]
    first = max(same_field, key=_progress)
    if first["type"] == "json_invalid":
        detail = first["msg"].removeprefix("Invalid JSON: ")
        return RequestError(f"The body is not valid JSON: {detail}", code="invalid_json")
    if first["type"] == CONFLICT:
        return RequestError(first["msg"], param=first["ctx"]["param"])
    param = ".".join(_path(first["loc"])) or None
    where = f"'{param}': " if param else ""
    if first["type"] == "missing":
        return RequestError(f"{where}field required", param=param, code="missing_field")
    return RequestError(f"{where}{first['msg']}, got {shown(first['input'])}", param=param)


def _progress(complaint: ErrorDetails) -> tuple[bool, int, tuple[int, ...]]:
    """How far a branch of a union got: past the type, then how deep, then to which item."""
    location = complaint["loc"]
    right_type = not complaint["type"].endswith("_type")
    return right_type, len(location), tuple(part for part in location if isinstance(part, int))


def conflict(param: str, message: str) -> PydanticCustomError:
    """What a schema raises when fields that are right alone do not go together."""
    return PydanticCustomError(CONFLICT, "{message}", {"param": param, "message": message})


def _path(location: tuple[int | str, ...]) -> list[str]:
    """A field's place without the names that union branches add ("list[str]", "str").

    A key that is wrong itself is no place of its own: the field that holds it is.
    """
    if location[-1:] == ("[key]",):
        location = location[:-2]
    path = [str(part) for part in location if re.fullmatch(r"\w+", str(part))]
    while path and path[-1] in ("str", "int", "float", "bool"):
        path.pop()
    return path


def install(app: FastAPI) -> None:
    """Register the handlers on an application."""
    app.add_exception_handler(RequestError, _on_fault)
    app.add_exception_handler(EngineError, _on_fault)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(ClientDisconnect, _on_disconnect)


async def _on_fault(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError | EngineError)
    return fault_response(error)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = shown(request.scope["path"])  # request.url fails on a query that is no UTF-8
    if error.status_code == 404:
        return error_response(404, f"No such path: {path}", code="not_found")
    if error.status_code == 405:
        message = f"{request.method} is not allowed on {path}"
        response = error_response(405, message, code="method_not_allowed")
        response.headers.update(error.headers or {})
        return response
    return error_response(error.status_code, str(error.detail))


async def _on_disconnect(_request: Request, _error: Exception) -> Response:
    return Response(status_code=CLIENT_CLOSED_REQUEST)
