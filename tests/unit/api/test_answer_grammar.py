"""What a chat answer is held to, by the grammars that are really made of it."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from xgrammar import allocate_token_bitmask

from atom_lite.api.answer_grammar import constrain
from atom_lite.api.chat_formats import ChatFormats
from atom_lite.api.schema_chat import ChatCompletionRequest
from atom_lite.config_chat import ChatConfig
from atom_lite.errors import RequestError
from tests.fakes.grammars import compiler_of, make_grammar, smollm_vocabulary
from tests.fakes.vocabularies import smollm_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable

    from atom_lite.api.chat_formats import MessageForm
    from atom_lite.ipc.grammar_messages import GrammarSpec
    from atom_lite.messages import Grammar

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 9}},
    "required": ["city"],
}
FORM = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "boolean"}}}


def tool(**fields: Any) -> dict[str, Any]:
    function = {"name": "weather", "parameters": PARAMETERS, "strict": True, **fields}
    return {"type": "function", "function": function}


def call(arguments: str) -> str:
    return f'<tool_call>\n{{"name": "weather", "arguments": {arguments}}}\n</tool_call>'


PARIS = call('{"city": "Paris"}')


class RealGrammars:
    async def compile(self, spec: GrammarSpec) -> Grammar:
        return make_grammar(
            smollm_vocabulary(),
            spec.kind,
            json.loads(spec.text) if spec.kind == "json_schema" else spec.text,
            any_whitespace=spec.any_whitespace,
        )


def made(
    prompt: str = "", reasoning_parser: str = "none", **fields: Any
) -> tuple[Grammar | None, MessageForm | None]:
    body = ChatCompletionRequest.model_validate(
        {"messages": [{"role": "user", "content": "x"}], **fields}
    )
    config = ChatConfig(reasoning_parser=reasoning_parser)
    form = ChatFormats(config, smollm_tokenizer(), "{{ tools }}").form(body, prompt)
    return asyncio.run(constrain(RealGrammars(), body, form))


def matcher(grammar: Grammar | None) -> Any:
    """A follower of tokens."""
    from xgrammar import Grammar as Rules
    from xgrammar import GrammarCompiler, GrammarMatcher

    assert grammar is not None
    assert grammar.backend == "xgrammar"
    backend = compiler_of(smollm_vocabulary(), "auto")._xgrammar
    assert backend is not None
    rules = Rules.deserialize_json(grammar.compiled.decode())
    return GrammarMatcher(GrammarCompiler(backend._info).compile_grammar(rules))


def taking(grammar: Grammar | None) -> Callable[[str], bool]:
    def accepts(text: str) -> bool:
        follower = matcher(grammar)
        return bool(follower.accept_string(text) and follower.is_completed())

    return accepts


def may_come(follower: Any, token_id: int) -> bool:
    """Whether the mask of the next token lets one through."""
    mask = allocate_token_bitmask(1, 49152)
    follower.fill_next_token_bitmask(mask)
    return bool((int(mask[0, token_id // 32]) >> (token_id % 32)) & 1)


def test_nothing_is_held_that_needs_not_be():
    assert made() == (None, None)
    assert made(tools=[tool(strict=None)])[0] is None
    assert made("<think>", "qwen3")[0] is None


def test_calls_of_strict_functions_are_held_to_their_schemas():
    grammar, form = made(tools=[tool()])
    takes = taking(grammar)
    assert form is not None
    assert form.calling == "auto"
    for text in ("No call.", "a <b> c", PARIS, f"Two:\n{PARIS}\n{PARIS}", ""):
        assert takes(text), text
    for text in (call("{}"), call('{"city": 1}'), PARIS.replace("weather", "other")):
        assert not takes(text), text


def test_an_answer_has_the_form_or_is_calls():
    grammar, form = made(tools=[tool(strict=False)], response_format=FORM)
    takes = taking(grammar)
    assert form is not None
    assert form.calling == "auto"
    assert takes("true")
    assert takes(call('{"any": 1}'))
    assert takes(f"{PARIS}\n{PARIS}")
    assert not takes("maybe")
    assert not takes(f"true {PARIS}")


@pytest.mark.parametrize(
    ("fields", "answer"),
    [
        ({"response_format": FORM}, "true"),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, "yes"),
        ({"structured_outputs": {"regex": "[0-9]{2}"}}, "42"),
        ({"structured_outputs": {"grammar": 'root ::= "ok"'}}, "ok"),
        (
            {"tools": [tool()], "tool_choice": "required"},
            '[{"name": "weather", "parameters": {"city": "Paris"}}]',
        ),
    ],
)
def test_a_model_that_reasons_may_think_before_a_form(fields, answer):
    grammar, form = made("<think>\n", "qwen3", **fields)
    takes = taking(grammar)
    assert form is not None
    assert form.reasoning is not None
    assert takes(f"Well ... <b>\n</think>\n\n{answer}")
    assert takes(f"</think>{answer}")
    assert not takes(answer)
    assert not takes("Well\n</think>\n\nsomething else")
    either = taking(made("", "qwen3", **fields)[0])
    assert either(answer)
    assert either(f"<think>\nWell\n</think>\n\n{answer}")
    assert not either(f"Well\n</think>\n\n{answer}")


def test_a_form_that_no_tag_can_hold_comes_without_thoughts():
    lark = {"structured_outputs": {"grammar": 'start: "ok"'}}
    grammar, form = made("<think>\n", "qwen3", **lark)
    assert grammar is not None
    assert grammar.backend == "guidance"
    assert form is not None
    assert form.reasoning is None
    pattern = {"type": "string", "pattern": "^a+$"}
    fields = {"structured_outputs": {"json": pattern}, "tools": [tool()]}
    grammar, form = made("<think>\n", "qwen3", **fields)
    assert grammar is not None
    assert form is not None
    assert (form.reasoning, form.calling) == (None, "none")


def test_no_thoughts_where_the_request_wants_none():
    fields = {"response_format": FORM, "reasoning_effort": "none"}
    takes = taking(made("", "qwen3", **fields)[0])
    assert takes("true")
    assert not takes("<think></think>true")


@pytest.mark.parametrize("fields", [{}, {"response_format": FORM}, {"tools": [tool()]}])
def test_a_budget_ends_thoughts_after_so_many_tokens(fields):
    grammar, _ = made("<think>\n", "qwen3", thinking_token_budget=5, **fields)
    encode = smollm_tokenizer().encode
    follower = matcher(grammar)
    words = encode("one two three four five six", add_special_tokens=False)
    for word in words[:5]:
        assert may_come(follower, word)
        assert follower.accept_token(word)
    assert not may_come(follower, words[5])
    for token in encode("</think>", add_special_tokens=False):
        assert may_come(follower, token)
        assert follower.accept_token(token)
    assert follower.accept_string("true")


def test_a_budget_needs_thoughts_that_can_be_counted():
    with pytest.raises(RequestError, match="--reasoning-parser"):
        made(thinking_token_budget=5)
    assert made("<think></think>", "qwen3", thinking_token_budget=5)[0] is None


def test_a_strict_schema_that_cannot_be_held_is_refused():
    bad = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^a+$"}}}
    with pytest.raises(RequestError, match="'tools'"):
        made(tools=[tool(parameters=bad)])
