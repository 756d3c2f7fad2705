"""Valid request bodies, and valid values at the limits that the server's document states.

The bodies are written for SmolLM2's tokenizer under load format `scripted`, where a sequence says
its script and stops; a real model is told to say little (`for_model`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import random

    from tests.openapi_document import Document

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
TOKENIZE, DETOKENIZE = "/tokenize", "/detokenize"
SCRIPT = [33203, 23960, 57, 58]  # DEF GH I J
USER = {"role": "user", "content": "Say DEF"}
_STREAM = {"stream": True, "stream_options": {"include_usage": True}}
_SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}

# Fields of both generating endpoints that go together.
SHARED: list[dict[str, Any]] = [
    {},
    _STREAM,
    {"temperature": 0.7, "top_p": 0.9, "top_k": 20, "min_p": 0.05, "seed": 7},
    {"stop": ["GH", "stop"], "include_stop_str_in_output": True, "min_tokens": 1},
    {"stop_token_ids": [57], "ignore_eos": True, "skip_special_tokens": False, **_STREAM},
    {"presence_penalty": 0.5, "frequency_penalty": -0.5, "repetition_penalty": 1.1},
    {"logit_bias": {"57": -100, "58": 5}, "bad_words": ["GH"], "temperature": 0},
    {"allowed_token_ids": [57, 58, 2], "n": 2, "seed": 1},
    {"n": 3, **_STREAM},
    {"n": 1, "best_of": 2},
    {"return_token_ids": True, "return_tokens_as_token_ids": True},
    {"truncate_prompt_tokens": 5, "truncation_side": "left"},
    {"prompt_logprobs": 1},
    {"priority": 1, "cache_salt": "salt", "request_id": "an-id", "stream_interval": 2, **_STREAM},
    {"response_format": {"type": "text"}},
    {"response_format": {"type": "json_object"}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": _SCHEMA}}},
    {"structured_outputs": {"regex": "[a-c]{1,3}"}},
    {"guided_choice": ["yes", "no"], **_STREAM},
    {"grammar": 'root ::= "x"'},
    {"user": "me", "metadata": {"a": [1, None, {"b": "c"}]}, "store": False, "made_up": 1},
]

_OWN: dict[str, list[dict[str, Any]]] = {
    CHAT: [
        {"messages": [USER]},
        {"messages": [USER], "logprobs": True, "top_logprobs": 2},
        {"messages": [USER], "logprobs": True, **_STREAM},
        {"messages": [{"role": "system", "content": "Be short"}, USER], "model": None},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}], "name": "n"}]},
        {
            "messages": [USER, {"role": "assistant", "content": "Sure", "reasoning": "hm"}],
            "add_generation_prompt": False,
            "continue_final_message": True,
            "echo": True,
        },
        {"messages": [USER], "chat_template_kwargs": {"a": 1}, "reasoning_effort": "low"},
        {"messages": [USER], "documents": [{"title": "t"}], "max_completion_tokens": 3},
    ],
    COMPLETIONS: [
        {"prompt": "Say DEF"},
        {"prompt": ["one", "two"], "max_tokens": 3, **_STREAM},
        {"prompt": [1, 2, 3]},
        {"prompt": [[1, 2], [3]], "logprobs": 0},
        {"prompt": "x", "echo": True, "max_tokens": 0, "logprobs": 1},
        {"prompt": "x", "echo": True, "logprobs": 2, **_STREAM},
    ],
    TOKENIZE: [
        {"prompt": "some text"},
        {"prompt": "x", "add_special_tokens": False, "return_token_strs": True},
        {"messages": [USER], "add_generation_prompt": True},
    ],
    DETOKENIZE: [{"tokens": SCRIPT}, {"tokens": [], "model": None}],
}


def bodies(*, scripted: bool) -> list[tuple[str, dict[str, Any]]]:
    """Every path with every valid body."""
    short = {"vllm_xargs": {"script": SCRIPT}} if scripted else {"max_tokens": 4}
    found: list[tuple[str, dict[str, Any]]] = []
    for path, own in _OWN.items():
        generates = path in (CHAT, COMPLETIONS)
        found += [(path, (short if generates else {}) | body) for body in own]
        if generates:
            found += [(path, short | own[0] | shared) for shared in SHARED]
    return found


def limit_values(document: Document, path: str) -> dict[str, list[Any]]:
    """By field, values that the document allows, at its limits. New fields come by themselves."""
    operation = document.document["paths"][path]["post"]
    reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    schemas = document.document["components"]["schemas"]
    properties = schemas[reference.rpartition("/")[2]]["properties"]
    return {name: _limits(schema, schemas) for name, schema in properties.items()}


def at_the_limits(rng: random.Random, limits: dict[str, list[Any]]) -> dict[str, Any]:
    """Some fields at once, each at one of its limits."""
    usable = [name for name in sorted(limits) if limits[name]]
    names = rng.sample(usable, rng.randint(1, min(8, len(usable))))
    return {name: rng.choice(limits[name]) for name in names}


def _limits(schema: dict[str, Any], schemas: dict[str, Any]) -> list[Any]:
    if "$ref" in schema:
        return _limits(schemas[schema["$ref"].rpartition("/")[2]], schemas)
    if "anyOf" in schema:
        return [value for part in schema["anyOf"] for value in _limits(part, schemas)]
    if "enum" in schema or "const" in schema:
        return list(schema.get("enum", [schema.get("const")]))
    kind = schema.get("type")
    if kind in ("integer", "number"):
        return _number_limits(schema, 1 if kind == "integer" else 1e-9)
    if kind == "array":
        items = _limits(schema.get("items", {}), schemas)[:3]
        lists = [[], items, items * 20]
        least, most = schema.get("minItems", 0), schema.get("maxItems", 10**9)
        return [value for value in lists if least <= len(value) <= most]
    if kind == "object":
        return [{}] if not schema.get("required") else []
    return {"boolean": [False, True], "null": [None], "string": _text_limits(schema)}.get(kind, [])


def _number_limits(schema: dict[str, Any], step: float) -> list[Any]:
    found = [0, 1]
    for key, inwards in (("minimum", 0), ("maximum", 0), ("exclusiveMinimum", step)):
        if key in schema:
            found.append(schema[key] + inwards)
    if "exclusiveMaximum" in schema:
        found.append(schema["exclusiveMaximum"] - step)
    low, high = schema.get("minimum", -(10**30)), schema.get("maximum", 10**30)
    return [value for value in found if low <= value <= high]


def _text_limits(schema: dict[str, Any]) -> list[Any]:
    if "pattern" in schema:
        return ["1"]
    least, most = schema.get("minLength", 0), min(schema.get("maxLength", 2000), 2000)
    return ["\U0001f600" * least, "a" * most, "a\x00b", "{{ 7 * 7 }}", "<|im_end|>"]
