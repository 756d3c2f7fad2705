"""The document tells the truth: every route, every status, every body."""

from __future__ import annotations

import asyncio
import inspect
import re

import jsonschema
import pytest
from fastapi.routing import APIRoute

from atom_lite.api import app as application
from atom_lite.api.gate import OPEN_PATHS
from atom_lite.config import Config
from atom_lite.config_chat import ChatConfig
from tests.fakes.fake_engine import FakeEngine, engine_ready
from tests.openapi_document import Answer, Document
from tests.unit.api.serving import (
    MODEL,
    ids_of,
    in_memory,
    on_socket,
    run,
    saying,
    server_config,
)

CHAT = {"messages": [{"role": "user", "content": "x"}]}
PROMPT = {"prompt": "x", "max_tokens": 9}
STREAMED = {
    "stream": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
}
LISTED = {"return_token_ids": True, "echo": True, "n": 2}
CHAT_LISTED = CHAT | LISTED | {"logprobs": True, "top_logprobs": 2}
TOOLS = {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]}
TEXT_LISTED = PROMPT | LISTED | {"logprobs": 2}
BODIES = {
    "/v1/chat/completions": [
        CHAT,
        CHAT | STREAMED,
        CHAT | {"stream": True},
        CHAT_LISTED | {"prompt_logprobs": 1},
        CHAT_LISTED | STREAMED,
        CHAT | TOOLS,
        CHAT_LISTED | TOOLS | STREAMED,
    ],
    "/v1/completions": [
        PROMPT,
        PROMPT | STREAMED,
        PROMPT | {"prompt": ["a", "b"]},
        TEXT_LISTED | {"prompt_logprobs": 1},
        TEXT_LISTED | STREAMED,
    ],
    "/tokenize": [{"prompt": "x"}, CHAT | {"return_token_strs": True}],
    "/detokenize": [{"tokens": [5]}, {"tokens": []}],
}


def roomy(text: str) -> FakeEngine:
    """An engine whose context holds tools too."""
    ready = engine_ready(max_model_len=2048, num_blocks=256)
    return FakeEngine(ready, plan=lambda _message: ids_of(text))


def answer_of(response) -> Answer:
    return Answer(response.status_code, response.headers, response.content)


async def document_of(served) -> Document:
    return Document((await served.client.get("/openapi.json")).json())


def routes() -> list[APIRoute]:
    routers = [module.router for module in application._ROUTES]
    return [route for router in routers for route in router.routes if isinstance(route, APIRoute)]


def references_in(value) -> set[str]:
    if isinstance(value, list):
        return set().union(*map(references_in, value))
    if isinstance(value, dict):
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*map(references_in, value.values()))
    return set()


def test_every_route_is_documented_with_its_body_and_every_kind_of_answer(tokenizer):
    async def scenario():
        async with in_memory(saying("x"), tokenizer) as served:
            document = await document_of(served)
        for route in routes():
            for method in route.methods:
                name = f"{method} {route.path}"
                path = re.sub(r":\w+\}", "}", route.path)
                operation = document.document["paths"][path][method.lower()]
                assert operation["description"], name
                responses = operation["responses"]
                assert ("401" in responses) == (route.path not in OPEN_PATHS), name
                assert "200" in responses, name
                assert "422" not in responses, name
                for status, response in responses.items():
                    if status != "200":
                        schema = response["content"]["application/json"]["schema"]
                        assert schema == {"$ref": "#/components/schemas/ErrorAnswer"}, name
                reads = re.search(r"read_body\(request, (\w+)\)", inspect.getsource(route.endpoint))
                body = operation.get("requestBody", {"content": {"application/json": {}}})
                expected = {"schema": {"$ref": f"#/components/schemas/{reads[1]}"}} if reads else {}
                assert body["content"]["application/json"] == expected, name
                if reads:
                    assert {"400", "404", "413"} <= responses.keys(), name

    run(scenario())


def test_the_document_is_whole_and_its_schemas_are_json_schema(tokenizer):
    async def scenario():
        async with in_memory(saying("x"), tokenizer) as served:
            document = (await document_of(served)).document
        schemas = document["components"]["schemas"]
        for reference in references_in(document):
            assert reference.removeprefix("#/components/schemas/") in schemas
        for schema in schemas.values():
            jsonschema.Draft202012Validator.check_schema(schema)

    run(scenario())


def test_every_path_answers_as_documented(tokenizer):
    async def scenario():
        text = '<think>hm</think>hello <tool_call>{"name": "f"}</tool_call>'
        engine = roomy(text)
        config = Config(chat=ChatConfig(reasoning_parser="qwen3"))
        async with on_socket(engine, tokenizer, config) as served:
            document = await document_of(served)
            for method, path, operation in document.operations():
                if "requestBody" in operation:
                    for body in BODIES[path]:
                        answer = answer_of(await served.client.post(path, json=body))
                        assert answer.status == 200
                        document.check(method, path, answer)
                answer = answer_of(await served.client.request(method, path, json=[]))
                assert (answer.status == 400) == ("requestBody" in operation), (path, answer)
                document.check(method, path, answer)

    run(scenario())


def test_a_server_that_cannot_serve_answers_as_documented(tokenizer):
    async def scenario():
        async with in_memory(roomy("x"), tokenizer) as served:
            document = await document_of(served)
            served.engine.die()
            for method, path, operation in document.operations():
                for body in BODIES.get(path, [None]):
                    target = path.replace("{model}", MODEL)
                    answer = answer_of(await served.client.request(method, target, json=body))
                    document.check(method, path, answer)
                    assert answer.status == (503 if "503" in operation["responses"] else 200)

    run(scenario())


@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_that_dies_in_between_is_documented(tokenizer, stream):
    async def scenario():
        async with in_memory(saying("x"), tokenizer) as served:
            document = await document_of(served)
            served.engine.hold()
            asking = asyncio.create_task(served.complete(stream=stream))
            await served.engine.until(lambda: served.engine.num_open == 1)
            served.engine.die()
            answer = answer_of(await asking)
            assert answer.status == 500
            document.check("POST", "/v1/completions", answer)

    run(scenario())


def test_a_key_is_asked_for_where_the_document_says_so(tokenizer):
    async def scenario():
        config = server_config(api_key=("secret",))
        async with in_memory(saying("x"), tokenizer, config) as served:
            served.client.headers["authorization"] = "Bearer secret"
            document = await document_of(served)
            del served.client.headers["authorization"]
            schemes = document.document["components"]["securitySchemes"]
            assert [{name: []} for name in schemes] == document.document["security"]
            for method, path, operation in document.operations():
                answer = answer_of(await served.client.request(method, path))
                document.check(method, path, answer)
                assert (answer.status == 401) == (operation.get("security") != [])

    run(scenario())


def test_only_a_server_with_keys_documents_them(tokenizer):
    async def scenario():
        async with in_memory(saying("x"), tokenizer) as served:
            document = (await document_of(served)).document
        assert "security" not in document
        assert "securitySchemes" not in document["components"]

    run(scenario())


def test_the_judge_refuses_what_is_not_documented(tokenizer):
    async def scenario():
        async with in_memory(saying("x"), tokenizer) as served:
            document = await document_of(served)
            good = answer_of(await served.complete())
        document.check("POST", "/v1/completions", good)
        path, headers = "/v1/completions", good.headers
        for bad in (
            Answer(422, headers, good.body),
            Answer(200, headers, good.body[:-1] + b',"more":1}'),
            Answer(200, headers, good.body.replace(b'"text"', b'"test"')),
            Answer(200, {"content-type": "text/html"}, good.body),
            Answer(200, {"content-type": "text/event-stream"}, b"data: {}\n\n"),
            Answer(400, headers, b'{"error":{"message":"x"}}'),
        ):
            with pytest.raises(AssertionError):
                document.check("POST", path, bad)
        assert document.accepts(path, {"prompt": "x"})
        assert not document.accepts(path, {"prompt": "x", "max_tokens": "5"})
        assert document.path_of("/v1/models/a/b?x=1") == "/v1/models/{model}"
        assert document.path_of("/v1/models/") is None

    run(scenario())
