"""The request fields that say what form the output must have.

OpenAI's response_format and vLLM's structured_outputs; the older guided_* and other servers' names
mean the same. One request may state one form. Fields inside an object that we do not know are
refused, not ignored: a constraint that is not kept is worse than an error.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from atom_lite.api.faults import conflict

MAX_CHOICES = 4096

JsonSchema = dict[str, Any] | bool
JsonSchemaOrText = dict[str, Any] | bool | str
Text = Annotated[str, Field(min_length=1)]
Choices = Annotated[list[Text], Field(min_length=1, max_length=MAX_CHOICES, fail_fast=True)]

# Fields that state a form, each alone.
_FORMS = (
    *("response_format", "structured_outputs"),
    *("guided_json", "guided_regex", "guided_choice", "guided_grammar", "guided_json_object"),
    *("json_schema", "regex", "ebnf", "grammar", "structural_tag"),
)


class _Known(BaseModel):
    model_config = ConfigDict(
        strict=True, extra="forbid", allow_inf_nan=False, protected_namespaces=()
    )


class NamedSchema(_Known):
    """OpenAI's `json_schema` of a response_format."""

    name: Text
    description: str | None = None
    schema_: JsonSchema = Field(alias="schema")
    strict: bool | None = None  # the schema is kept to in any case


class ResponseFormat(_Known):
    """OpenAI's response_format; `schema` beside json_object is llama.cpp's."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: NamedSchema | None = None
    schema_: JsonSchema | None = Field(default=None, alias="schema")
    # of a structural tag: the current form, or the two of the older one
    format: dict[str, Any] | None = None
    structures: Annotated[list[dict[str, Any]], Field(min_length=1)] | None = None
    triggers: list[str] | None = None

    @model_validator(mode="after")
    def _check_belonging(self) -> ResponseFormat:
        takes = {
            "json_object": ("schema_",),
            "json_schema": ("json_schema",),
            "structural_tag": ("format", "structures", "triggers"),
        }.get(self.type, ())
        for name in ("json_schema", "schema_", "format", "structures", "triggers"):
            if getattr(self, name) is not None and name not in takes:
                self._complain(name.rstrip("_"), f"does not go with the type {self.type}")
        if self.type == "json_schema" and self.json_schema is None:
            self._complain("json_schema", "field required")
        if self.type == "structural_tag" and (self.format is None) == (self.structures is None):
            self._complain("format", "a structural tag has either it or 'structures'")
        return self

    def _complain(self, name: str, problem: str) -> None:
        param = f"response_format.{name}"
        raise conflict(param, f"'{param}': {problem}")


class StructuredOutputs(_Known):
    """vLLM's structured_outputs: exactly one form, and how JSON is spaced."""

    json_: JsonSchemaOrText | None = Field(default=None, alias="json")
    regex: Text | None = None
    choice: Choices | None = None
    grammar: Text | None = None
    json_object: bool | None = None
    structural_tag: dict[str, Any] | Text | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    disable_fallback: bool = False  # which library compiles it is the server's business
    whitespace_pattern: Text | None = None

    @model_validator(mode="after")
    def _check_one(self) -> StructuredOutputs:
        names = ("json_", "regex", "choice", "grammar", "json_object", "structural_tag")
        given = [name.rstrip("_") for name in names if getattr(self, name) not in (None, False)]
        if self.json_ is False:
            given.insert(0, "json")  # a schema that allows nothing, and still a schema
        if len(given) != 1:
            raise conflict(
                "structured_outputs",
                "'structured_outputs' needs exactly one of json, regex, choice, grammar, "
                f"json_object and structural_tag, got {', '.join(given) or 'none'}",
            )
        return self


class StructuredFields(BaseModel):
    """The part of a generating request that states a form."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    # vLLM's former names
    guided_json: JsonSchemaOrText | None = None
    guided_regex: Text | None = None
    guided_choice: Choices | None = None
    guided_grammar: Text | None = None
    guided_json_object: bool | None = None
    guided_whitespace_pattern: Text | None = None
    guided_decoding_backend: str | None = None
    # SGLang's and llama.cpp's
    json_schema: JsonSchemaOrText | None = None
    regex: Text | None = None
    ebnf: Text | None = None
    grammar: str | None = None  # "" asks for nothing
    structural_tag: dict[str, Any] | Text | None = None

    @model_validator(mode="after")
    def _check_one_form(self) -> StructuredFields:
        given = self.stated_forms
        if len(given) > 1:
            raise conflict(
                given[1], f"'{given[1]}' and '{given[0]}' exclude each other: one form per request"
            )
        if self.guided_whitespace_pattern and given not in (
            ["guided_json"],
            ["guided_json_object"],
        ):
            raise conflict(
                "guided_whitespace_pattern",
                "'guided_whitespace_pattern' needs 'guided_json' or 'guided_json_object'",
            )
        return self

    @property
    def stated_forms(self) -> list[str]:
        """The fields that state a form; at most one once the request is validated."""
        asks_nothing = self.response_format is not None and self.response_format.type == "text"
        return [
            name
            for name in _FORMS
            if _asks(name, getattr(self, name)) and not (name == "response_format" and asks_nothing)
        ]


def _asks(name: str, value: object) -> bool:
    if name == "guided_json_object":
        return value is True
    return value is not None and value != ""
