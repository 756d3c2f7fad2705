from __future__ import annotations

from atom_lite.text.tool_prompt import knows_tools, teach

TOOL = {"type": "function", "function": {"name": "now"}}
USER = {"role": "user", "content": "When?"}


def test_tools_join_the_system_message_that_is_there():
    system = {"role": "system", "content": "Be brief."}
    first, second = teach([system, USER], [TOOL], tell_format=True)
    assert first["content"].startswith("Be brief.\n\n# Tools")
    assert '{"type": "function", "function": {"name": "now"}}' in first["content"]
    assert "<tool_call>" in first["content"]
    assert second == USER
    assert system == {"role": "system", "content": "Be brief."}


def test_the_format_is_told_only_to_models_that_are_read_by_it():
    first, _ = teach([USER], [TOOL], tell_format=False)
    assert first["role"] == "system"
    assert "<tool_call>" not in first["content"]


def test_without_tools_only_earlier_calls_are_written():
    call = {"id": "1", "function": {"name": "now", "arguments": {}}}
    turns = [
        USER,
        {"role": "assistant", "content": "Hm.", "tool_calls": [call]},
        {"role": "tool", "content": "noon", "tool_call_id": "1"},
    ]
    assert teach(turns, None, tell_format=True) == [
        USER,
        {
            "role": "assistant",
            "content": 'Hm.\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
        },
        {"role": "user", "content": "<tool_response>\nnoon\n</tool_response>"},
    ]


def test_a_template_knows_tools_if_it_reads_them():
    assert knows_tools("{% if tools %}{{ tools }}{% endif %}")
    assert not knows_tools("{{ messages }} pretools")
