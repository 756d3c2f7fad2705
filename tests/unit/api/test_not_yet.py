from __future__ import annotations

import pytest

from atom_lite.api.not_yet import NOT_YET
from tests.unit.api.serving import in_memory, run, saying

ASKING = {
    "use_beam_search": True,
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "tool_choice": "auto",
    "suffix": "end",
    "include_reasoning": False,
    "modalities": ["text", "audio"],
}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_field_that_would_change_the_answer_is_refused_by_name(tokenizer, path):
    base = {"messages": [{"role": "user", "content": "x"}], "prompt": "x"}

    async def scenario():
        async with in_memory(saying("x"), tokenizer) as served:
            for name, neutrals in NOT_YET.items():
                value = ASKING.get(name, {"something": 1})
                answer = await served.client.post(path, json=base | {name: value})
                assert answer.status_code == 400, (name, answer.text)
                error = answer.json()["error"]
                assert (error["param"], error["code"]) == (name, "not_supported_yet")
                assert "not supported yet" in error["message"]
                for neutral in (None, *neutrals):
                    answer = await served.client.post(path, json=base | {name: neutral})
                    assert answer.status_code == 200, (name, neutral, answer.text)

    run(scenario())


@pytest.mark.parametrize(
    ("name", "value"), [("length_penalty", True), ("mirostat", False), ("tools", [])]
)
def test_look_alikes_of_neutral_values_are_refused(tokenizer, name, value):
    async def scenario():
        async with in_memory(saying("x"), tokenizer) as served:
            assert (await served.complete(**{name: value})).status_code == 400

    run(scenario())


def test_unknown_field_is_accepted_with_one_warning(tokenizer, caplog):
    async def scenario():
        async with in_memory(saying("x"), tokenizer) as served:
            for _ in range(3):
                answer = await served.chat(brand_new_field=1, user="me", metadata={}, store=True)
                assert answer.status_code == 200

    run(scenario())
    warnings = [record.getMessage() for record in caplog.records if "unknown" in record.message]
    assert warnings == ["ignoring the unknown request field 'brand_new_field'"]


def test_made_up_fields_do_not_grow_memory_or_the_log(tokenizer, caplog):
    async def scenario():
        async with in_memory(saying("x"), tokenizer) as served:
            names = {f"field {number} \n of many": 1 for number in range(2000)}
            assert (await served.complete(**names)).status_code == 200

    run(scenario())
    assert len(caplog.records) < 300
    assert all("\n" not in record.getMessage() for record in caplog.records)
