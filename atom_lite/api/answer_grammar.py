"""The one grammar of a chat answer: thoughts, then a form, free text or calls.

A form or a demanded call alone is a grammar by itself (`structured.py`, `tool_grammar.py`). What
else a request may want of the same output is put together here as a structural tag:

    thoughts before a form         a model that reasons may do so first
    thinking_token_budget          thoughts of so many tokens at most
    strict functions, free choice  a call has the arguments that the schema says
    a form, free choice            the answer has the form, or is calls

Where such a tag cannot hold the form (its library does less of JSON schema than the others), the
output keeps to the form from its first token on, as without thoughts and tools.
"""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from atom_lite.api.structured import StatedForm, compile_grammar, stated_form
from atom_lite.api.tool_grammar import forced_form
from atom_lite.errors import RequestError
from atom_lite.ipc.grammar_messages import GrammarSpec
from atom_lite.text.reasoning import Opening

if TYPE_CHECKING:
    from atom_lite.api.chat_formats import MessageForm
    from atom_lite.api.schema_chat import ChatCompletionRequest
    from atom_lite.api.schema_tools import Tool
    from atom_lite.api.structured import GrammarSource
    from atom_lite.messages import Grammar
    from atom_lite.text.reasoning import ReasoningFormat

_LINE_BREAKS = {"type": "regex", "pattern": "\\n{0,2}"}

logger = logging.getLogger(__name__)
_warned: set[str] = set()


async def constrain(
    source: GrammarSource | None, body: ChatCompletionRequest, form: MessageForm | None
) -> tuple[Grammar | None, MessageForm | None]:
    """The grammar of an answer, None where it is free, and how the answer is then read.

    Raises:
        RequestError: 400 that says what cannot be kept to.
        EngineError: the compiler cannot be run.
    """
    stated = stated_form(body) or forced_form(body)
    if form is None:
        return await compile_grammar(source, stated), None
    tag = _tag(body, form, stated)
    budgeted = body.thinking_token_budget is not None
    if tag is not None:
        text = json.dumps({"type": "structural_tag", "format": tag}, ensure_ascii=False)
        param = "thinking_token_budget" if budgeted else "tools" if stated is None else stated.param
        spec = GrammarSpec(kind="structural_tag", text=text)
        try:
            return await compile_grammar(source, StatedForm(param, spec)), form
        except RequestError as error:
            if stated is None or budgeted or error.status != 400:
                raise
    if stated is not None:
        forced = body.calling in ("required", "named")
        form = replace(form, reasoning=None, calling=form.calling if forced else "none")
    return await compile_grammar(source, stated), form


def _tag(
    body: ChatCompletionRequest, form: MessageForm, stated: StatedForm | None
) -> dict[str, Any] | None:
    """What must be put together; None where nothing must or can be."""
    budget = body.thinking_token_budget
    thoughts = form.reasoning if _thinks(body, form) else None
    answer: dict[str, Any] | None
    if stated is not None:
        answer, alone = _format_of(stated.spec), True
        if answer is not None and form.calling == "auto" and form.writes_tags:
            calls = _calls(body, "tags_with_separator", separator="\n", at_least_one=True)
            answer, alone = {"type": "or", "elements": [answer, calls]}, False
    else:
        answer, alone = _strict_answer(body, form), False
        if budget is not None and thoughts is not None:
            answer = answer or {"type": "any_text"}
        else:
            thoughts = None  # free text may hold them
    if answer is None or (alone and thoughts is None):
        return None
    return answer if thoughts is None else _after_thoughts(thoughts, form.opening, answer, budget)


def _thinks(body: ChatCompletionRequest, form: MessageForm) -> bool:
    """Whether the output begins with thoughts that a grammar can follow.

    Raises:
        RequestError: thoughts are to be limited, and cannot be.
    """
    limited = body.thinking_token_budget is not None
    if limited and (form.reasoning is None or form.hidden_marks):
        raise RequestError(
            "'thinking_token_budget' needs a model whose thoughts are marked by plain text, and "
            "--reasoning-parser",
            param="thinking_token_budget",
        )
    if form.reasoning is None or form.hidden_marks or form.opening is Opening.ANSWER:
        return False
    return limited or form.may_think


def _after_thoughts(
    marks: ReasoningFormat, opening: Opening, answer: dict[str, Any], budget: int | None
) -> dict[str, Any]:
    """Thoughts, then an answer; without them where the output may begin with either."""
    text: dict[str, Any] = {"type": "any_text"}
    if budget is not None:
        text["max_tokens"] = budget
    begin = "" if opening is Opening.THOUGHT else marks.start
    thought = {"type": "tag", "begin": begin, "content": text, "end": marks.end}
    both = {"type": "sequence", "elements": [thought, _LINE_BREAKS, answer]}
    if opening is Opening.THOUGHT:
        return both
    if answer["type"] in ("any_text", "triggered_tags"):
        answer = {**answer, "excludes": [marks.start]}
    return {"type": "or", "elements": [both, answer]}


def _format_of(spec: GrammarSpec) -> dict[str, Any] | None:
    """A form as a part of a tag; None where only a library of its own does it."""
    if spec.whitespace_pattern is not None or spec.close_objects:
        return None
    match spec.kind:
        case "json_schema":
            try:
                schema = json.loads(spec.text)
            except (ValueError, RecursionError):
                return None  # its compiler says what is wrong
            spaces = {} if spec.any_whitespace else {"max_whitespace_cnt": 1}
            return {"type": "json_schema", "json_schema": schema, **spaces}
        case "choice":
            choices = json.loads(spec.text)
            texts = [{"type": "const_string", "value": choice} for choice in choices]
            return {"type": "or", "elements": texts} if len(texts) > 1 else texts[0]
        case "regex":
            return {"type": "regex", "pattern": spec.text}
        case "grammar" if "::=" in spec.text:
            return {"type": "grammar", "grammar": spec.text}
        case _:
            return None


# ---------------------------------------------------------------- calls of the model's own


def _strict_answer(body: ChatCompletionRequest, form: MessageForm) -> dict[str, Any] | None:
    """Free text in which calls of strict functions have the arguments that these declare."""
    if form.calling != "auto" or not any(tool.function.strict for tool in body.usable_tools):
        return None
    if not form.writes_tags:
        _warn_not_strict(form.parser.__name__)
        return None
    only_one = body.parallel_tool_calls is False
    return _calls(body, "triggered_tags", triggers=["<tool_call>"], stop_after_first=only_one)


def _calls(body: ChatCompletionRequest, kind: str, **settings: Any) -> dict[str, Any]:
    return {"type": kind, "tags": [_call(tool) for tool in body.usable_tools], **settings}


def _call(tool: Tool) -> dict[str, Any]:
    """A call as `HermesParser` reads it."""
    name = json.dumps(tool.function.name, ensure_ascii=False)
    schema = tool.function.schema_ if tool.function.strict else {"type": "object"}
    return {
        "type": "tag",
        "begin": f'<tool_call>\n{{"name": {name}, "arguments": ',
        "content": {"type": "json_schema", "json_schema": schema},
        "end": "}\n</tool_call>",
    }


def _warn_not_strict(parser: str) -> None:
    if parser not in _warned:
        _warned.add(parser)
        logger.warning(
            "'strict' of a function is not enforced with tool_choice auto in the format of %s; it "
            "is with required or a named function",
            parser,
        )
