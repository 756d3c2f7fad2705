"""The request bodies of /openapi.json.

Routes read their bodies themselves (for OpenAI's errors and the size limit), so FastAPI does not
see the schemas; this adds them, generated from the very classes that validate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

if TYPE_CHECKING:
    from fastapi import FastAPI
    from pydantic import BaseModel

_REF = "#/components/schemas/{model}"
_ERROR_SCHEMA = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}


def body_of(schema: type[BaseModel]) -> dict[str, Any]:
    """`openapi_extra` of a route that reads this schema."""
    reference = {"$ref": _REF.format(model=schema.__name__)}
    return {
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": reference}},
        },
        "responses": {
            "4XX": {
                "description": "The request cannot be served",
                "content": {"application/json": {"schema": {"$ref": _REF.format(model="Error")}}},
            }
        },
    }


def install(app: FastAPI, schemas: list[type[BaseModel]]) -> None:
    """Make the application's document, once, when it is first asked for."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            made = get_openapi(title=app.title, version=app.version, routes=app.routes)
            _, definitions = models_json_schema(
                [(schema, "validation") for schema in schemas], ref_template=_REF
            )
            components = made.setdefault("components", {}).setdefault("schemas", {})
            components.update(definitions["$defs"])
            components["Error"] = _ERROR_SCHEMA
            _drop_422(made)
            app.openapi_schema = made
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]  # FastAPI's documented way


def _drop_422(document: dict[str, Any]) -> None:
    """Take out FastAPI's own validation error, which this server never sends."""
    for methods in document["paths"].values():
        for operation in methods.values():
            operation["responses"].pop("422", None)
    for name in ("HTTPValidationError", "ValidationError"):
        document["components"]["schemas"].pop(name, None)
