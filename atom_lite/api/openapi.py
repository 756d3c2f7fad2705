"""/openapi.json: what each path takes, and every way it can answer.

Routes read their bodies themselves (for OpenAI's errors and the size limit), and most write their
answers as bytes, so FastAPI sees neither; this adds both. Bodies are described by the very classes
that validate them, answers by `schema_answers.py`; fuzzing holds the server to all of it.

Not said path by path, because it is no path's own: an unknown path is a 404, a method that a path
does not list a 405, a path with a slash too many a 307. Their bodies are `ErrorAnswer`s too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from atom_lite.api.gate import OPEN_PATHS
from atom_lite.api.schema_answers import ErrorAnswer

if TYPE_CHECKING:
    from fastapi import FastAPI
    from pydantic import BaseModel

# What an endpoint can answer besides 200.
READS_BODY = (400, 401, 404, 413)
GENERATES = (*READS_BODY, 500, 503)

_REF_TEMPLATE = "#/components/schemas/{model}"
_MEANINGS = {
    400: "The request cannot be served as it is; `param` names the field",
    401: "No valid API key",
    404: "No such model",
    413: "The body is too large",
    500: "The engine failed",
    503: "No work is taken now; try again later",
}
_SECURITY_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "api_key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}


def body_of(schema: type[BaseModel]) -> dict[str, Any]:
    """`openapi_extra` of a route that reads this schema."""
    return {
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": _reference(schema)}},
        }
    }


def answers(
    *errors: int, whole: type[BaseModel] | None = None, event: type[BaseModel] | None = None
) -> dict[int | str, dict[str, Any]]:
    """`responses` of a route.

    Args:
        errors: the statuses that it can answer besides 200.
        whole: the body of a 200, where FastAPI does not know it from the annotation.
        event: the payload of a stream's events, where the client may ask for a stream.
    """
    found: dict[int | str, dict[str, Any]] = {
        status: {"model": ErrorAnswer, "description": _MEANINGS[status]} for status in errors
    }
    content: dict[str, Any] = {}
    if whole is not None:
        content["application/json"] = {"schema": _reference(whole)}
    if event is not None:
        content["text/event-stream"] = {
            "schema": {
                "type": "string",
                "description": "Events with a JSON object each; the last is `data: [DONE]`",
            },
            "x-event-schema": _reference(event),
        }
    if content:
        found[200] = {"content": content}
    return found


def install(app: FastAPI, schemas: list[type[BaseModel]], *, secured: bool) -> None:
    """Make the application's document, once, when it is first asked for.

    Args:
        app: all routes are in.
        schemas: that `body_of` and `answers` name.
        secured: whether an API key is asked for.
    """

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            made = get_openapi(title=app.title, version=app.version, routes=app.routes)
            _, definitions = models_json_schema(
                [(schema, "validation") for schema in schemas], ref_template=_REF_TEMPLATE
            )
            made["components"]["schemas"].update(definitions["$defs"])
            _drop_422(made)
            if secured:
                _ask_for_key(made)
            app.openapi_schema = made
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]  # FastAPI's documented way


def _reference(schema: type[BaseModel]) -> dict[str, str]:
    return {"$ref": _REF_TEMPLATE.format(model=schema.__name__)}


def _drop_422(document: dict[str, Any]) -> None:
    """Take out FastAPI's own validation error, which this server never sends."""
    for methods in document["paths"].values():
        for operation in methods.values():
            operation["responses"].pop("422", None)
    for name in ("HTTPValidationError", "ValidationError"):
        document["components"]["schemas"].pop(name, None)


def _ask_for_key(document: dict[str, Any]) -> None:
    document["components"]["securitySchemes"] = _SECURITY_SCHEMES
    document["security"] = [{name: []} for name in _SECURITY_SCHEMES]
    for path in OPEN_PATHS:
        for operation in document["paths"][path].values():
            operation["security"] = []
