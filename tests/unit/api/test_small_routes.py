"""The endpoints that generate nothing."""

from __future__ import annotations

import asyncio

import jsonschema
import pytest

from atom_lite.messages import EngineEvents, EngineStats
from tests.unit.api.serving import MODEL, TEMPLATE, ids_of, in_memory, on_socket, run, saying


def test_models_are_listed_and_retrieved_by_names_with_slashes(tokenizer):
    async def scenario():
        async with in_memory(saying("x"), tokenizer) as served:
            listed = (await served.client.get("/v1/models")).json()
            (card,) = listed["data"]
            assert listed["object"] == "list"
            assert (card["id"], card["object"]) == (MODEL, "model")
            assert card["max_model_len"] == 256
            assert (await served.client.get(f"/v1/models/{MODEL}")).json() == card

    run(scenario())


def test_tokenize_takes_a_prompt(tokenizer):
    async def scenario():
        async with in_memory(saying("x"), tokenizer) as served:
            answer = await served.client.post("/tokenize", json={"prompt": "aDEFé"})
            assert answer.json() == {
                "count": 4,
                "max_model_len": 256,
                "tokens": ids_of("aDEFé"),
                "token_strs": None,
            }
            answer = await served.client.post(
                "/tokenize", json={"prompt": "aDEF", "return_token_strs": True}
            )
            assert answer.json()["token_strs"] == ["a", "DEF"]

    run(scenario())


@pytest.mark.parametrize(
    "body", [{}, {"prompt": "x", "messages": [{"role": "user", "content": "x"}]}]
)
def test_tokenize_wants_exactly_one_form(tokenizer, body):
    async def scenario():
        async with in_memory(saying("x"), tokenizer) as served:
            answer = await served.client.post("/tokenize", json=body)
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == "prompt"

    run(scenario())


def test_detokenize_is_the_inverse_and_checks_ids(tokenizer):
    async def scenario():
        async with in_memory(saying("x"), tokenizer) as served:
            answer = await served.client.post("/detokenize", json={"tokens": [1, *ids_of("hé")]})
            assert answer.json() == {"prompt": "<turn>hé"}
            assert (await served.client.post("/detokenize", json={"tokens": []})).json() == {
                "prompt": ""
            }
            for bad in ([261], [-1], [10**30], "x", None):
                answer = await served.client.post("/detokenize", json={"tokens": bad})
                assert answer.status_code == 400
                assert answer.json()["error"]["param"].startswith("tokens")

    run(scenario())


def test_tokenizer_info_has_what_evaluation_harnesses_read(tokenizer):
    async def scenario():
        async with in_memory(saying("x"), tokenizer) as served:
            info = (await served.client.get("/tokenizer_info")).json()
            assert info["chat_template"] == TEMPLATE
            assert info["eos_token"] == "<eos>"
            assert {"tokenizer_class", "bos_token"} <= info.keys()

    run(scenario())


def test_health_is_empty_and_the_small_ones_answer(tokenizer):
    async def scenario():
        async with in_memory(saying("x"), tokenizer) as served:
            get, post = served.client.get, served.client.post
            health = await get("/health")
            assert (health.status_code, health.content) == (200, b"")
            assert (await get("/ping")).status_code == (await post("/ping")).status_code == 200
            assert (await get("/version")).json() == {"version": "0.1.0"}
            assert (await get("/load")).json() == {"server_load": 0}
            assert (await post("/reset_prefix_cache")).status_code == 200
            assert served.engine.num_cache_resets == 1

    run(scenario())


def test_health_of_a_hung_engine_is_503_until_it_comes_back(tokenizer):
    async def scenario():
        async with in_memory(saying("x"), tokenizer) as served:
            served.engine.responding = False
            for path in ("/health", "/ping"):
                answer = await served.client.get(path)
                assert answer.status_code == 503
                assert answer.json()["error"]["code"] == "engine_hung"
            served.engine.responding = True
            assert (await served.client.get("/health")).status_code == 200

    run(scenario())


def test_head_is_get_without_a_body(tokenizer):
    async def scenario():
        async with on_socket(saying("x"), tokenizer) as served:
            for path in ("/health", "/metrics", "/v1/models", "/version"):
                answer = await served.client.head(path)
                assert answer.status_code == 200
                assert answer.content == b""
            assert (await served.client.head("/v1/completions")).status_code == 405
            assert (await served.client.head("/nothing")).status_code == 404
            value = served.metrics.registry.get_sample_value(
                "http_requests_total", {"handler": "/health", "method": "HEAD", "status": "2xx"}
            )
            assert value == 1

    run(scenario())


def test_long_texts_do_not_hold_up_the_event_loop(tokenizer):
    """Seconds of work on the loop would be one long gap between two of its turns."""

    async def scenario():
        async with in_memory(saying("x"), tokenizer) as served:
            words = [2 + number % 200 for number in range(400_000)]
            for path, body in (
                ("/tokenize", {"prompt": "ab " * 100_000, "return_token_strs": True}),
                ("/detokenize", {"tokens": words}),
            ):
                asking = asyncio.create_task(served.client.post(path, json=body))
                turns = 0
                while not asking.done():
                    await asyncio.sleep(0.001)
                    turns += 1
                assert asking.result().status_code == 200
                assert turns > 5

    run(scenario())


def test_gauges_of_a_dead_engine_are_zero_and_its_totals_stay(tokenizer):
    async def scenario():
        async with in_memory(saying("x"), tokenizer) as served:
            stats = EngineStats(num_running=2, num_waiting=3, kv_usage=0.5, num_preemptions=4)
            served.metrics.observe_engine(EngineEvents(events=[], stats=stats))
            assert served.metric("num_requests_running") == 2
            served.engine.die()
            assert (await served.client.get("/metrics")).status_code == 200
            for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
                assert served.metric(name) == 0
            assert served.metric("num_preemptions_total") == 4

    run(scenario())


def test_openapi_document_describes_the_bodies_that_are_validated(tokenizer):
    async def scenario():
        async with in_memory(saying("x"), tokenizer) as served:
            document = (await served.client.get("/openapi.json")).json()
        schemas = document["components"]["schemas"]
        for path, name in (
            ("/v1/chat/completions", "ChatCompletionRequest"),
            ("/v1/completions", "CompletionRequest"),
            ("/tokenize", "TokenizeRequest"),
            ("/detokenize", "DetokenizeRequest"),
        ):
            body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
            assert body["schema"] == {"$ref": f"#/components/schemas/{name}"}
            assert "422" not in document["paths"][path]["post"]["responses"]
        assert "max_completion_tokens" in schemas["ChatCompletionRequest"]["properties"]
        assert schemas["CompletionRequest"]["required"] == ["prompt"]
        validator = jsonschema.Draft202012Validator(
            {"$ref": "#/components/schemas/ChatCompletionRequest", **document}
        )
        assert validator.is_valid({"messages": [{"role": "user", "content": "x"}]})
        assert not validator.is_valid({"messages": []})
        assert not validator.is_valid({"messages": [{"role": "user"}], "temperature": 3})

    run(scenario())
