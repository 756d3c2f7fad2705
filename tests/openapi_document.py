"""A server's own /openapi.json as the judge of what it answers.

Schemas of answers are read as closed: a field that the document does not name is a mistake of the
document, though not one that a client would suffer from.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jsonschema

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class Answer:
    """An HTTP answer; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def media_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip()

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = json.loads(self.body)["error"]
        return error


class Document:
    """Judges answers, and JSON values as request bodies."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        self._closed = _closed(document)
        self._validators: dict[tuple[str, bool], jsonschema.Draft202012Validator] = {}

    def operations(self) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Method, path and description of everything that is served."""
        for path, methods in self.document["paths"].items():
            for method, operation in methods.items():
                yield method.upper(), path, operation

    def path_of(self, target: str) -> str | None:
        """The documented path that a request's path belongs to."""
        path = target.partition("?")[0]
        for template in self.document["paths"]:
            pattern = re.sub(r"\\\{.*?\\\}", "(.+)", re.escape(template))
            if re.fullmatch(pattern, path, re.DOTALL):
                return str(template)
        return None

    def accepts(self, path: str, value: Any) -> bool:
        """Whether a JSON value is a body that the document allows."""
        operation = self.document["paths"][path]["post"]
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        return bool(self._validator(schema["$ref"], closed=False).is_valid(value))

    def check(self, method: str, path: str, answer: Answer) -> None:
        """Fail unless the document has this answer."""
        responses = self.document["paths"][path][method.lower()]["responses"]
        assert str(answer.status) in responses, f"{method} {path} does not document {answer}"
        content = responses[str(answer.status)].get("content", {})
        if not content:
            assert answer.body == b"", answer
            return
        assert answer.media_type in content, f"{method} {path}: {answer.media_type}"
        described = content[answer.media_type]
        if answer.media_type == "application/json":
            self._check_value(described["schema"], json.loads(answer.body))
        elif answer.media_type == "text/event-stream":
            for event in events_of(answer.body):
                error = {"$ref": "#/components/schemas/ErrorAnswer"}
                self._check_value(error if "error" in event else described["x-event-schema"], event)

    def check_error(self, answer: Answer) -> None:
        """Fail unless the body is the error object, whatever path it came from."""
        self._check_value({"$ref": "#/components/schemas/ErrorAnswer"}, json.loads(answer.body))
        assert answer.error["message"]

    def _check_value(self, schema: dict[str, Any], value: Any) -> None:
        if "$ref" not in schema:  # FastAPI's own, of a plain JSON object
            assert isinstance(value, dict)
            return
        for complaint in self._validator(schema["$ref"], closed=True).iter_errors(value):
            raise AssertionError(f"{schema['$ref']}: {complaint.message} in {value}")

    def _validator(self, reference: str, *, closed: bool) -> jsonschema.Draft202012Validator:
        key = (reference, closed)
        if key not in self._validators:
            source = self._closed if closed else self.document
            self._validators[key] = jsonschema.Draft202012Validator({"$ref": reference, **source})
        return self._validators[key]


def events_of(body: bytes) -> list[Any]:
    """The payloads of a stream, which must be whole."""
    parts = body.decode().split("\n\n")
    assert parts.pop() == "", "the stream ends within an event"
    lines = [part for part in parts if not part.startswith(":")]
    assert all(line.startswith("data: ") for line in lines)
    assert lines.pop() == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def _closed(document: dict[str, Any]) -> dict[str, Any]:
    """The document with no room for fields that it does not name."""
    closed = copy.deepcopy(document)
    for schema in closed["components"]["schemas"].values():
        if "properties" in schema:
            schema.setdefault("additionalProperties", False)
    return closed
