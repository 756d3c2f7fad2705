"""From the request fields that state a form to one `GrammarSpec`, whatever they are called.

What a schema or pattern means is the grammar compiler's to judge, in a process of its own; here is
only told apart what is what, and what is too large to be passed on.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from atom_lite.errors import RequestError
from atom_lite.ipc.grammar_messages import GrammarSpec
from atom_lite.text.tokenizer import check_is_text

if TYPE_CHECKING:
    from atom_lite.api.schema_structured import (
        ResponseFormat,
        StructuredFields,
        StructuredOutputs,
    )
    from atom_lite.messages import Grammar

MAX_SPEC_BYTES = 512 * 1024
_ANY_OBJECT = '{"type": "object"}'

logger = logging.getLogger(__name__)
_warned: set[str] = set()


class GrammarSource(Protocol):
    """Compiles grammars; `ipc.grammar_client.GrammarClient` and the fake of the unit tests."""

    async def compile(self, spec: GrammarSpec) -> Grammar:
        """The grammar of a spec.

        Raises:
            RequestError: 400 where it cannot be compiled, 503 where too many wait.
            EngineError: the compiler cannot be run.
        """
        ...


class StatedForm(NamedTuple):
    """What a request wants, and the field that an error is blamed on."""

    param: str
    spec: GrammarSpec


async def compile_grammar(source: GrammarSource | None, form: StatedForm | None) -> Grammar | None:
    """The grammar that an output must keep to; None where it may be any text.

    Raises:
        RequestError: 400 that says what cannot be compiled and why, 503 where too many wait.
        EngineError: the compiler cannot be run.
    """
    if form is None:
        return None
    if source is None:
        raise RequestError(f"'{form.param}': this server has no grammar compiler", param=form.param)
    try:
        return await source.compile(form.spec)
    except RequestError as error:
        raise RequestError(
            f"'{form.param}': {error.message}",
            param=form.param,
            code=error.code,
            status=error.status,
        ) from error


def stated_form(body: StructuredFields) -> StatedForm | None:
    """The one form that a request states, if any.

    Raises:
        RequestError: 400 for what is too large, or no text.
    """
    if not body.stated_forms:
        return None
    (name,) = body.stated_forms
    if name.startswith("guided_"):
        _warn_once(name)
    if body.guided_decoding_backend is not None:
        _warn_once("guided_decoding_backend")
    form = _form(name, body)
    check_is_text(form.spec.text, param=form.param)
    num_bytes = len(form.spec.text.encode())
    if num_bytes > MAX_SPEC_BYTES:
        raise RequestError(
            f"'{form.param}' has {num_bytes} bytes; at most {MAX_SPEC_BYTES} are taken",
            param=form.param,
        )
    return form


def _form(name: str, body: StructuredFields) -> StatedForm:
    value: Any = getattr(body, name)
    if name == "response_format":
        return _of_response_format(value)
    if name == "structured_outputs":
        return _of_structured_outputs(value)
    match name:
        case "guided_json" | "guided_json_object" | "json_schema":
            text = _ANY_OBJECT if name == "guided_json_object" else _as_json(value, name)
            pattern = body.guided_whitespace_pattern
            spec = GrammarSpec(kind="json_schema", text=text, whitespace_pattern=pattern)
        case "guided_regex" | "regex":
            spec = GrammarSpec(kind="regex", text=value)
        case "guided_choice":
            spec = GrammarSpec(kind="choice", text=_as_json(value, name))
        case "structural_tag":
            spec = GrammarSpec(kind="structural_tag", text=_as_json(value, name))
        case _:  # guided_grammar, ebnf, grammar
            spec = GrammarSpec(kind="grammar", text=value)
    return StatedForm(name, spec)


def _of_response_format(wanted: ResponseFormat) -> StatedForm:
    if wanted.type == "structural_tag":
        tag = wanted.model_dump(include={"type", "format", "structures", "triggers"})
        tag = {key: value for key, value in tag.items() if value is not None}
        text = _as_json(tag, "response_format")
        return StatedForm("response_format", GrammarSpec(kind="structural_tag", text=text))
    param, schema = "response_format.schema", wanted.schema_
    if wanted.json_schema is not None:
        param, schema = "response_format.json_schema.schema", wanted.json_schema.schema_
    if schema is None:
        param, text = "response_format", _ANY_OBJECT
    else:
        text = _as_json(schema, param)
    return StatedForm(param, GrammarSpec(kind="json_schema", text=text))


def _of_structured_outputs(wanted: StructuredOutputs) -> StatedForm:
    def spec(kind: Any, text: str) -> GrammarSpec:
        return GrammarSpec(
            kind=kind,
            text=text,
            any_whitespace=not wanted.disable_any_whitespace,
            whitespace_pattern=wanted.whitespace_pattern,
            close_objects=wanted.disable_additional_properties,
        )

    prefix = "structured_outputs."
    if wanted.json_object:
        return StatedForm(prefix + "json_object", spec("json_schema", _ANY_OBJECT))
    if wanted.regex is not None:
        return StatedForm(prefix + "regex", GrammarSpec(kind="regex", text=wanted.regex))
    if wanted.grammar is not None:
        return StatedForm(prefix + "grammar", GrammarSpec(kind="grammar", text=wanted.grammar))
    if wanted.choice is not None:
        text = _as_json(wanted.choice, prefix + "choice")
        return StatedForm(prefix + "choice", GrammarSpec(kind="choice", text=text))
    if wanted.structural_tag is not None:
        text = _as_json(wanted.structural_tag, prefix + "structural_tag")
        return StatedForm(prefix + "structural_tag", GrammarSpec(kind="structural_tag", text=text))
    text = _as_json(wanted.json_, prefix + "json")
    return StatedForm(prefix + "json", spec("json_schema", text))


def _as_json(value: Any, param: str) -> str:
    """JSON as text; text is taken for JSON that a client has written itself."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError:
        raise RequestError(f"'{param}' holds a number that is not finite", param=param) from None


def _warn_once(name: str) -> None:
    if name in _warned:
        return
    _warned.add(name)
    if name == "guided_decoding_backend":
        logger.warning(
            "ignoring the request field guided_decoding_backend: the library is chosen by "
            "--structured-outputs-backend"
        )
    else:
        logger.warning(
            "the request field %s is deprecated; use structured_outputs or response_format", name
        )
