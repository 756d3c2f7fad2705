"""JSON schemas before they are compiled: what is enforced, what is only a note, what is refused.

Both grammar libraries pass over words that they do not know, and xgrammar also over many that
constrain. A client that is promised a schema must get it, so each keyword is one of these:

    enforced       KEYWORDS; llguidance does what they say or gives an error. xgrammar is exact only
                   for the plain schemas that `beyond_xgrammar` lets through (found by trial: it
                   takes `pattern` for the whole string, and drops `uniqueItems`, `not`, what stands
                   beside `$ref` or `anyOf`, `multipleOf` of numbers, and more)
    a note         ANNOTATIONS and names that begin with x-: they never decide whether a value is
                   valid. So is a `format` that JSON Schema does not define (int32, binary, ...)
    refused        all else, by name and place, whether or not `strict` is set

The order of properties is the schema's. An object that lists `properties` and does not mention
additional ones gets none, as in vLLM: a model would not find an end. That is left undone where
schemas are intersected (allOf, or words beside $ref, anyOf, oneOf), which it could empty.

Pure; runs in the grammar compiler's processes.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn, TypeAlias

from atom_lite.errors import RequestError

Schema: TypeAlias = "dict[str, Any] | bool"

MAX_DEPTH = 100  # of objects and arrays in each other; the libraries' own limits lie above
MAX_ENUM_MEMBERS = 4096  # in all; OpenAI takes 1000

_MAPS = frozenset(("properties", "patternProperties", "$defs", "definitions"))
_LISTS = frozenset(("anyOf", "oneOf", "allOf", "prefixItems"))
_SINGLES = frozenset(("additionalProperties", "items", "additionalItems"))
_VALUES = frozenset(
    (
        *("type", "enum", "const", "$ref"),
        *("minLength", "maxLength", "pattern", "format"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
        *("minItems", "maxItems"),
        *("required", "minProperties", "maxProperties"),
        *("$id", "$anchor"),  # name what a $ref may lead to
    )
)
KEYWORDS = _MAPS | _LISTS | _SINGLES | _VALUES
ANNOTATIONS = frozenset(
    (
        *("$schema", "$comment", "title", "description", "default", "examples", "deprecated"),
        *("readOnly", "writeOnly", "contentEncoding", "contentMediaType", "contentSchema"),
        # of OpenAPI, zod, ajv and forms
        *("example", "discriminator", "externalDocs", "xml", "markdownDescription"),
        *("enumNames", "enumDescriptions", "errorMessage", "propertyOrdering"),
    )
)
# A keyword with this value says nothing.
_NEUTRAL: dict[str, Any] = {
    "uniqueItems": False,
    "unevaluatedProperties": True,
    "unevaluatedItems": True,
    "nullable": False,
    "strict": True,
}
_FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
)
_UNENFORCED_FORMATS = frozenset(
    (
        *("idn-email", "idn-hostname", "uri-reference", "iri", "iri-reference", "uri-template"),
        *("json-pointer", "relative-json-pointer", "regex"),
    )
)
_BESIDE = frozenset(("$defs", "definitions", "$id", "$anchor"))  # constrain nothing themselves


def prepare_schema(text: str, *, close_objects: bool) -> Schema:
    """Check a schema and make it ready for a compiler.

    Args:
        text: the schema as JSON.
        close_objects: leave out additional properties also where schemas are intersected.

    Returns:
        A copy without annotations, its objects closed.

    Raises:
        RequestError: it is no schema, too large, or says something that would not be enforced.
    """
    survey = _Survey()
    schema = survey.copy(_parse(text), "#", 0)
    if close_objects or not survey.intersects:
        for node in survey.objects:
            _close(node)
    return schema


def beyond_xgrammar(schema: Schema) -> str | None:
    """The place of the first thing in a prepared schema that xgrammar does not do exactly.

    None: all of it is done exactly.
    """
    root = schema if isinstance(schema, dict) else {}
    names = {
        f"#/{table}/{name}" for table in ("$defs", "definitions") for name in root.get(table, ())
    }
    return _beyond(schema, "#", frozenset({"#", *names}))


def refuse(place: str, problem: str, error: type[RequestError] = RequestError) -> NoReturn:
    """Raise the 400 for one place of a schema."""
    raise error(f"the JSON schema at {place}: {problem}")


def _parse(text: str) -> Any:
    def no_number(word: str) -> NoReturn:
        raise ValueError(f"{word} is no JSON number")

    try:
        schema = json.loads(text, parse_constant=no_number)
        json.dumps(schema, allow_nan=False)  # 1e999 is read as infinity
    except ValueError as error:
        raise RequestError(f"the schema is not valid JSON: {error}") from None
    except RecursionError:
        raise RequestError(f"the schema is nested deeper than {MAX_DEPTH} levels") from None
    return schema


class _Survey:
    """Copies a schema and remembers what its preparation needs to know of the whole."""

    def __init__(self) -> None:
        self.objects: list[dict[str, Any]] = []
        self.intersects = False
        self._num_members = 0

    def copy(self, schema: Any, place: str, depth: int) -> Schema:
        if depth > MAX_DEPTH:
            raise RequestError(f"the schema is nested deeper than {MAX_DEPTH} levels")
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            refuse(place, "must be an object or a boolean")
        node: dict[str, Any] = {}
        for keyword, value in schema.items():
            where = f"{place}/{_escaped(keyword)}"
            if self._is_enforced(keyword, value, where):
                node[keyword] = self._copy_value(keyword, value, where, depth)
        if "properties" in node:
            self.objects.append(node)
        if "allOf" in node or _intersects(node):
            self.intersects = True
        return node

    def _is_enforced(self, keyword: str, value: Any, place: str) -> bool:
        """Whether a keyword is to be kept; False for a note."""
        if keyword in ("format", "$ref", "pattern") and not isinstance(value, str):
            refuse(place, "must be a string")
        if keyword == "format":
            if value in _UNENFORCED_FORMATS:
                refuse(place, f"the format {value!r} is not supported")
            return value in _FORMATS
        if keyword in KEYWORDS:
            return True
        is_extension = keyword.startswith("x-") and keyword != "x-guidance"  # llguidance's settings
        if keyword in ANNOTATIONS or is_extension:
            return False
        if keyword in _NEUTRAL and value is _NEUTRAL[keyword]:
            return False
        refuse(place, f"the keyword {keyword[:64]!r} is not supported")

    def _copy_value(self, keyword: str, value: Any, place: str, depth: int) -> Any:
        if keyword in _MAPS:
            if not isinstance(value, dict):
                refuse(place, "must be an object of schemas")
            return {
                name: self.copy(schema, f"{place}/{_escaped(name)}", depth + 2)
                for name, schema in value.items()
            }
        if keyword in _LISTS or (keyword == "items" and isinstance(value, list)):
            if not isinstance(value, list):
                refuse(place, "must be a list of schemas")
            return [
                self.copy(schema, f"{place}/{index}", depth + 2)
                for index, schema in enumerate(value)
            ]
        if keyword in _SINGLES:
            return self.copy(value, place, depth + 1)
        if keyword == "enum":
            self._count_members(value, place)
        if keyword == "required" and not _are_strings(value):
            refuse(place, "must be a list of strings")
        return value

    def _count_members(self, members: Any, place: str) -> None:
        if not isinstance(members, list):
            refuse(place, "must be a list")
        self._num_members += len(members)
        if self._num_members > MAX_ENUM_MEMBERS:
            refuse(place, f"more than {MAX_ENUM_MEMBERS} enum members in all")


def _are_strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _intersects(node: dict[str, Any]) -> bool:
    """Whether what a $ref, anyOf or oneOf leads to is narrowed by what stands beside it."""
    choosers = node.keys() & {"$ref", "anyOf", "oneOf"}
    return bool(choosers) and len(node.keys() - _BESIDE) > 1


def _close(node: dict[str, Any]) -> None:
    """Say that an object has no properties but the listed ones, if it can do without others."""
    listed = node["properties"]
    least = node.get("minProperties", 0)
    if not isinstance(least, int):
        return  # the compiler will say what is wrong
    needs_others = least > len(listed) or not listed.keys() >= set(node.get("required", ()))
    if not needs_others and not node.keys() & {"additionalProperties", "patternProperties"}:
        node["additionalProperties"] = False


def _escaped(name: str) -> str:
    """A part of a JSON pointer, bounded, so that an error message stays one."""
    return name[:64].replace("~", "~0").replace("/", "~1")


# ---------------------------------------------------------------- what xgrammar does exactly

_BOUNDS = frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"))
_PLAIN_TYPES: dict[str, frozenset[str]] = {
    "null": frozenset(),
    "boolean": frozenset(),
    "number": frozenset(),
    "integer": _BOUNDS,
    "string": frozenset(("minLength", "maxLength")),
    "array": frozenset(("items", "minItems", "maxItems")),
    "object": frozenset(("properties", "required", "additionalProperties")),
}
_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "null": (type(None),),
    "boolean": (bool,),
    "number": (int,),
    "integer": (int,),
    "string": (str,),
}
_LARGEST_BOUND = 2**31


def _beyond(schema: Schema, place: str, names: frozenset[str]) -> str | None:
    if isinstance(schema, bool):
        return None if schema else place
    for table in ("$defs", "definitions"):
        for name, definition in schema.get(table, {}).items():
            if (found := _beyond(definition, f"{place}/{table}/{name}", names)) is not None:
                return found
    node = {key: value for key, value in schema.items() if key not in ("$defs", "definitions")}
    if not node:
        return None
    if node.keys() == {"$ref"}:
        return None if node["$ref"] in names else place
    if node.keys() == {"anyOf"} and node["anyOf"]:
        return _first(
            _beyond(choice, f"{place}/anyOf/{index}", names)
            for index, choice in enumerate(node["anyOf"])
        )
    if "enum" in node or "const" in node:
        return None if _is_plain_enum(node) else place
    return _beyond_typed(node, place, names)


def _beyond_typed(node: dict[str, Any], place: str, names: frozenset[str]) -> str | None:
    kind = node.get("type")
    if not isinstance(kind, str) or kind not in _PLAIN_TYPES:
        return place
    for keyword in node.keys() - {"type"}:
        if keyword not in _PLAIN_TYPES[kind]:
            return f"{place}/{keyword}"
    for keyword in node.keys() & (_BOUNDS | {"minLength", "maxLength", "minItems", "maxItems"}):
        if type(node[keyword]) is not int or abs(node[keyword]) > _LARGEST_BOUND:
            return f"{place}/{keyword}"
    if kind == "array":
        return _beyond(node.get("items", True), f"{place}/items", names)
    return _beyond_object(node, place, names) if kind == "object" else None


def _beyond_object(node: dict[str, Any], place: str, names: frozenset[str]) -> str | None:
    listed = node.get("properties", {})
    if not listed.keys() >= set(node.get("required", ())):
        return f"{place}/required"
    for name, schema in listed.items():
        where = f"{place}/properties/{name}"
        found = _beyond(schema, where, names) if _is_plain_text(name) else where
        if found is not None:
            return found
    additional = node.get("additionalProperties", True)
    if additional is False:
        return None
    return _beyond(additional, f"{place}/additionalProperties", names)


def _is_plain_enum(node: dict[str, Any]) -> bool:
    if node.keys() - {"enum", "const", "type"} or {"enum", "const"} <= node.keys():
        return False
    members = node["enum"] if "enum" in node else [node["const"]]
    kind = node.get("type")
    if kind is not None and (not isinstance(kind, str) or kind not in _PYTHON_TYPES):
        return False
    return bool(members) and all(
        type(member) in ((str, int, bool, type(None)) if kind is None else _PYTHON_TYPES[kind])
        and (not isinstance(member, str) or _is_plain_text(member))
        for member in members
    )


def _is_plain_text(text: str) -> bool:
    """Whether every JSON writer spells it alike, with nothing to escape."""
    return text.isascii() and text.isprintable() and '"' not in text and "\\" not in text


def _first(found: Any) -> str | None:
    return next((place for place in found if place is not None), None)
