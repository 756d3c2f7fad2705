"""Objectives that requests bring, in the body or in headers."""

from __future__ import annotations

import pytest

from tests.unit.api.serving import in_memory, run, saying


def promised(message) -> tuple[float | None, float | None]:
    return message.ttft_slo_seconds, message.tbt_slo_seconds


def test_fields_and_headers_reach_the_engine_and_the_body_goes_first(tokenizer):
    async def scenario():
        async with in_memory(saying("x"), tokenizer) as served:
            await served.chat(ttft_slo_ms=2000, tbt_slo_ms=50.5)
            served.client.headers.update({"X-TTFT-SLO-Ms": "750", "x-tbt-slo-ms": "40.5"})
            await served.complete()
            await served.chat(tbt_slo_ms=30)
            served.client.headers.clear()
            await served.complete()
        assert [promised(message) for message in served.engine.submitted] == [
            (2.0, 0.0505),
            (0.75, 0.0405),
            (0.75, 0.03),
            (None, None),
        ]

    run(scenario())


@pytest.mark.parametrize("value", [0, -1, 0.05, 3_600_001, "50", True, float("1e400")])
def test_a_field_that_is_no_objective_is_named_with_its_limit(tokenizer, value):
    async def scenario():
        async with in_memory(saying("x"), tokenizer) as served:
            refused = await served.client.post(
                "/v1/completions",
                content=f'{{"prompt": "x", "tbt_slo_ms": {_json(value)}}}',
                headers={"content-type": "application/json"},
            )
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "tbt_slo_ms"

    run(scenario())


@pytest.mark.parametrize("value", ["", "0", "-1", "nan", "inf", "1_000", "1e3", "fast", "3600001"])
def test_a_header_that_is_no_objective_is_named_with_its_limits(tokenizer, value):
    async def scenario():
        async with in_memory(saying("x"), tokenizer) as served:
            served.client.headers["X-TTFT-SLO-Ms"] = value
            refused = await served.chat()
        assert refused.status_code == 400
        error = refused.json()["error"]
        assert error["param"] == "ttft_slo_ms"
        assert "X-TTFT-SLO-Ms" in error["message"] and "3600000" in error["message"]

    run(scenario())


def _json(value: object) -> str:
    return {True: "true", float("inf"): "1e400"}.get(value, repr(value).replace("'", '"'))
