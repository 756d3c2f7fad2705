"""Random JSON schemas such as people write for structured output; every string and list is bounded.

Bounded, because a random model ends nothing by itself: it would fill an unbounded string for ever.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from hypothesis import strategies as st

Schema: TypeAlias = dict[str, Any]

NAMES = (
    "id",
    "name",
    "a b",
    "x-y",
    "value",
    "\xe9t\xe9",
    'q"q',
    "7",
    "back\\slash",
    "smile \U0001f600",
)
PATTERNS = (r"^[a-z]{1,6}$", r"^\d{3}-\d{4}$", "^(ab|cd){1,4}x?$", r"^\w{0,5}$", '^[^"]{3}$')
FORMATS = ("date", "date-time", "time", "uuid", "ipv4")
UNSUPPORTED: tuple[Schema, ...] = (
    {"type": "array", "items": {"type": "boolean"}, "uniqueItems": True},
    {"not": {"type": "string"}},
    {"type": "object", "propertyNames": {"maxLength": 3}},
    {"if": {"type": "string"}, "then": {"maxLength": 3}, "else": {"type": "null"}},
    {"type": "array", "contains": {"type": "integer"}},
)

words = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cs", "Cn")), min_size=0, max_size=8
)
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**6), 10**6), words, st.sampled_from((1.5, -0.25))
)


@st.composite
def integers(draw: st.DrawFn) -> Schema:
    schema: Schema = {"type": "integer"}
    low = draw(st.integers(-1000, 1000))
    if draw(st.booleans()):
        schema[draw(st.sampled_from(("minimum", "exclusiveMinimum")))] = low
    if draw(st.booleans()):
        high = low + draw(st.integers(2, 3000))
        schema[draw(st.sampled_from(("maximum", "exclusiveMaximum")))] = high
    return schema


@st.composite
def numbers(draw: st.DrawFn) -> Schema:
    low = draw(st.integers(-50, 50))
    return {"type": "number", "minimum": low, "maximum": low + draw(st.integers(1, 100))}


@st.composite
def strings(draw: st.DrawFn) -> Schema:
    kind = draw(st.sampled_from(("length", "length", "pattern", "format")))
    if kind == "pattern":
        return {"type": "string", "pattern": draw(st.sampled_from(PATTERNS))}
    if kind == "format":
        return {"type": "string", "format": draw(st.sampled_from(FORMATS))}
    least = draw(st.integers(0, 5))
    return {"type": "string", "minLength": least, "maxLength": least + draw(st.integers(0, 20))}


@st.composite
def enums(draw: st.DrawFn) -> Schema:
    values = draw(st.lists(scalars, min_size=1, max_size=6, unique_by=repr))
    return {"const": values[0]} if len(values) == 1 else {"enum": values}


leaves = st.one_of(
    st.sampled_from(({"type": "boolean"}, {"type": "null"})),
    integers(),
    numbers(),
    strings(),
    enums(),
    st.sampled_from(({"type": ["integer", "null"]}, {"type": ["boolean", "null"]})),
)


@st.composite
def arrays(draw: st.DrawFn, children: st.SearchStrategy[Schema]) -> Schema:
    least = draw(st.integers(0, 2))
    most = least + draw(st.integers(0, 3))
    schema: Schema = {"type": "array", "minItems": least, "maxItems": most}
    if draw(st.booleans()):
        return schema | {"items": draw(children)}
    first = draw(st.lists(children, min_size=1, max_size=3))
    return {"type": "array", "prefixItems": first, "items": False, "minItems": len(first)}


@st.composite
def objects(
    draw: st.DrawFn, children: st.SearchStrategy[Schema], choices: tuple[str, ...] = NAMES
) -> Schema:
    names = draw(st.lists(st.sampled_from(choices), max_size=5, unique=True))
    return {
        "type": "object",
        "properties": {name: draw(children) for name in names},
        "required": [name for name in names if draw(st.booleans())],
        "additionalProperties": False,
    }


@st.composite
def unions(draw: st.DrawFn, children: st.SearchStrategy[Schema]) -> Schema:
    return {"anyOf": draw(st.lists(children, min_size=2, max_size=3))}


def nested(children: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    return st.one_of(arrays(children), objects(children), objects(children), unions(children))


trees = nested(st.recursive(leaves, nested, max_leaves=6))

# What both libraries do exactly.
plain_leaves = st.one_of(
    st.sampled_from(({"type": "boolean"}, {"type": "null"}, {"enum": ["red", "green", 7]})),
    integers(),
    st.builds(lambda most: {"type": "string", "maxLength": most}, st.integers(1, 20)),
)
PLAIN_NAMES = NAMES[:5]
plain_trees = objects(st.one_of(plain_leaves, objects(plain_leaves, PLAIN_NAMES)), PLAIN_NAMES)


@st.composite
def recursive_schemas(draw: st.DrawFn) -> Schema:
    """A list whose nodes hold at most one more each, so that a random one ends."""
    node: Schema = {
        "type": "object",
        "properties": {
            "value": draw(leaves),
            "next": {"anyOf": [{"$ref": "#/$defs/node"}, draw(leaves)]},
        },
        "required": draw(st.sampled_from((["value"], ["value", "next"]))),
        "additionalProperties": False,
    }
    return {"$defs": {"node": node}, "$ref": "#/$defs/node"}


@st.composite
def shared_definitions(draw: st.DrawFn) -> Schema:
    reference = st.just({"$ref": "#/$defs/part"})
    tree = draw(nested(st.one_of(leaves, reference)))
    return {"$defs": {"part": draw(trees)}, **tree}


@st.composite
def unsupported(draw: st.DrawFn) -> Schema:
    bad = draw(st.sampled_from(UNSUPPORTED))
    return {"type": "object", "properties": {"a": draw(leaves), "b": bad}, "required": ["b"]}


supported = st.one_of(trees, trees, trees, plain_trees, recursive_schemas(), shared_definitions())
