from __future__ import annotations

import pytest

from tests.unit.api.serving import in_memory, run, saying, server_config

KEYS = server_config(api_key=("first-key", "second-key"))
OPEN = ["/health", "/ping", "/version", "/metrics"]
GUARDED = ["/v1/models", "/v1/models/tiny/bytes", "/tokenizer_info", "/openapi.json", "/nothing"]


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer first-key"},
        {"authorization": "bearer second-key"},
        {"x-api-key": "second-key"},
    ],
)
def test_each_key_opens_everything(tokenizer, headers):
    async def scenario():
        async with in_memory(saying("x"), tokenizer, KEYS) as served:
            served.client.headers.update(headers)
            assert (await served.chat()).status_code == 200
            assert (await served.client.get("/v1/models")).status_code == 200

    run(scenario())


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer"},
        {"authorization": "Bearer "},
        {"authorization": "Bearer first-ke"},
        {"authorization": "Bearer first-key2"},
        {"authorization": "Basic first-key"},
        {"authorization": "first-key"},
        {"x-api-key": ""},
        {"authorization": b"Bearer \xff\xfe"},
    ],
)
def test_without_a_key_only_the_open_paths_answer(tokenizer, headers):
    async def scenario():
        async with in_memory(saying("x"), tokenizer, KEYS) as served:
            served.client.headers.update(headers)
            for path in OPEN:
                assert (await served.client.get(path)).status_code == 200
            answers = [await served.client.get(path) for path in GUARDED]
            answers += [await served.chat(), await served.complete()]
            answers.append(await served.client.post("/tokenize", json={"prompt": "x"}))
            answers.append(await served.client.post("/v1/completions", content=b"{"))
            for answer in answers:
                assert answer.status_code == 401
                assert answer.headers["www-authenticate"] == "Bearer"
                error = answer.json()["error"]
                assert error["type"] == "authentication_error"
                assert error["code"] == "invalid_api_key"
            assert not served.engine.submitted

    run(scenario())


def test_preflight_needs_no_key_and_refusals_carry_cors_headers(tokenizer):
    async def scenario():
        async with in_memory(saying("x"), tokenizer, KEYS) as served:
            origin = {"origin": "http://page", "access-control-request-method": "POST"}
            preflight = await served.client.options("/v1/chat/completions", headers=origin)
            assert preflight.status_code == 200
            refused = await served.client.get("/v1/models", headers={"origin": "http://page"})
            assert refused.status_code == 401
            assert refused.headers["access-control-allow-origin"] == "*"

    run(scenario())


@pytest.mark.parametrize("stream", [False, True])
def test_request_id_of_the_client_names_the_answer(tokenizer, stream):
    async def scenario():
        async with in_memory(saying("x"), tokenizer) as served:
            served.client.headers["x-request-id"] = "from-header"
            answer = await served.chat(stream=stream)
            assert answer.headers["x-request-id"] == "from-header"
            assert "chatcmpl-from-header" in answer.text
            answer = await served.chat(stream=stream, request_id="from-body")
            assert answer.headers["x-request-id"] == "from-body"
            assert "chatcmpl-from-body" in answer.text

    run(scenario())


@pytest.mark.parametrize("bad", [b"a b", b"\xff", b"x" * 300, b""])
def test_unusable_request_id_is_replaced(tokenizer, bad):
    async def scenario():
        async with in_memory(saying("x"), tokenizer) as served:
            for path in ("/health", "/nothing"):
                answer = await served.client.get(path, headers={"x-request-id": bad})
                assert len(answer.headers["x-request-id"]) == 32

    run(scenario())


def test_requests_are_counted_by_route_not_by_path(tokenizer):
    async def scenario():
        async with in_memory(saying("x"), tokenizer) as served:
            await served.client.get("/v1/models/tiny/bytes")
            for number in range(3):
                await served.client.get(f"/made/up/{number}")
            await served.client.request("BREW", "/health")
            value = served.metrics.registry.get_sample_value
            one = {"handler": "/v1/models/{model:path}", "method": "GET"}
            assert value("http_requests_total", one | {"status": "2xx"}) == 1
            assert value("http_request_duration_seconds_count", one) == 1
            other = {"handler": "none", "method": "GET", "status": "4xx"}
            assert value("http_requests_total", other) == 3
            brewed = {"handler": "/health", "method": "OTHER", "status": "4xx"}
            assert value("http_requests_total", brewed) == 1

    run(scenario())
