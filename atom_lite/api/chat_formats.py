"""What the served model writes tool calls and thoughts with, and how one answer is read by it.

Settled once at start, by flags or from the chat template; a request then gets a `MessageForm`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from atom_lite.errors import RequestError
from atom_lite.text import reasoning
from atom_lite.text.chat_template import check_template_kwargs
from atom_lite.text.message import MessageParser
from atom_lite.text.reasoning import (
    REASONING_PARSERS,
    Opening,
    ReasoningFormat,
    ReasoningSplitter,
    opening_of,
)
from atom_lite.text.tool_calls import select
from atom_lite.text.tool_calls.forced import NamedCallParser, RequiredCallsParser
from atom_lite.text.tool_calls.mistral import MistralParser
from atom_lite.text.tool_calls.parser import Functions, ToolCallParser
from atom_lite.text.tool_calls.select import TOOL_CALL_PARSERS
from atom_lite.text.tool_prompt import knows_tools

if TYPE_CHECKING:
    from atom_lite.api.schema_chat import ChatCompletionRequest
    from atom_lite.config_chat import ChatConfig
    from atom_lite.text.tokenizer import Tokenizer

# Variables by which templates are told not to let a model think.
_THINKING = ("enable_thinking", "thinking")


class ChatFormats:
    """The formats of one model.

    Args:
        config: the operator's choice.
        tokenizer: of the model; a grammar sees no control tokens, so none of its marks.
        template: the chat template, the one for tools where a model has two; None if it has none.
    """

    def __init__(self, config: ChatConfig, tokenizer: Tokenizer, template: str | None) -> None:
        source = template or ""
        name: str | None = config.tool_call_parser
        if name == "auto":
            name = select.recognise(source) if knows_tools(source) else None
        self.tool_parser = TOOL_CALL_PARSERS[name or "hermes"]
        self.tells_format = self.tool_parser is TOOL_CALL_PARSERS["hermes"]
        self.template_defaults = config.template_defaults
        check_template_kwargs(self.template_defaults)
        self._auto_calls = config.enable_auto_tool_choice
        thoughts: str | None = config.reasoning_parser
        if thoughts == "auto":
            thoughts = reasoning.recognise(source)
        self.reasoning = REASONING_PARSERS.get(thoughts or "none")
        self._hidden_marks = self.reasoning is not None and bool(
            tokenizer.special_ids_of(self.reasoning.marks)
        )
        self._writes_tags = self.tells_format and not tokenizer.special_ids_of(
            self.tool_parser.marks
        )

    def form(self, body: ChatCompletionRequest, prompt: str) -> MessageForm | None:
        """How the answer to a request is read; None if it is content and nothing else.

        Args:
            body: the validated request.
            prompt: as text, up to where the output begins.

        Raises:
            RequestError: calls are asked for that this server was told not to look for.
        """
        calling = body.calling
        if calling == "auto" and not self._auto_calls:
            raise RequestError(
                "'tool_choice' = 'auto' needs a server with --enable-auto-tool-choice",
                param="tool_choice",
            )
        thoughts = self.reasoning
        if calling == "none" and thoughts is None and body.thinking_token_budget is None:
            return None
        variables = body.template_variables(self.template_defaults)
        may_think = not any(variables.get(name) is False for name in _THINKING)
        opening = Opening.ANSWER
        if thoughts is not None:
            opening = _opening(thoughts, body, prompt, may_think=may_think)
        return MessageForm(
            calling=calling,
            functions={tool.function.name: tool.function.schema_ for tool in body.usable_tools},
            parser=self.tool_parser,
            writes_tags=self._writes_tags,
            hidden_marks=self._hidden_marks,
            reasoning=thoughts,
            opening=opening,
            may_think=may_think,
            shows_thoughts=body.include_reasoning is not False,
            only_first_call=body.parallel_tool_calls is False,
        )


def _opening(
    form: ReasoningFormat, body: ChatCompletionRequest, prompt: str, *, may_think: bool
) -> Opening:
    if body.continue_final_message:
        last = body.last_text
        open_thought = last.rfind(form.start) > last.rfind(form.end)
        return Opening.THOUGHT if open_thought else Opening.ANSWER
    return opening_of(form, prompt, may_think=may_think)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageForm:
    """How the choices of one answer are read.

    Attributes:
        calling: whether there may or must be calls.
        functions: that may be called.
        parser: of calls that the model writes as it likes.
        writes_tags: these are Hermes' tags, in plain text.
        reasoning: how thoughts are marked; None looks for none.
        hidden_marks: these marks are control tokens.
        opening: what the prompt says of thoughts.
        may_think: the request leaves a model that reasons its thoughts.
        shows_thoughts: whether the client gets them.
        only_first_call: whether it gets one call at most.
    """

    calling: str
    functions: Functions
    parser: type[ToolCallParser]
    writes_tags: bool
    hidden_marks: bool
    reasoning: ReasoningFormat | None
    opening: Opening
    may_think: bool
    shows_thoughts: bool
    only_first_call: bool

    @property
    def marks(self) -> frozenset[str]:
        """What must be left in the text, even if these are control tokens."""
        calls = self.parser.marks if self.calling == "auto" else ()
        return frozenset((*calls, *(self.reasoning.marks if self.reasoning else ())))

    @property
    def short_call_ids(self) -> bool:
        """Whether ids of calls must be nine letters and digits, as Mistral's templates demand."""
        return self.parser is MistralParser

    def splitter(self) -> ReasoningSplitter | None:
        """Of one choice."""
        return None if self.reasoning is None else ReasoningSplitter(self.reasoning, self.opening)

    def message(self) -> MessageParser:
        """Of one choice."""
        return MessageParser(
            self._tool_parser(),
            shows_thoughts=self.shows_thoughts,
            only_first_call=self.only_first_call,
            told_as_calls=self.calling != "named",
        )

    def _tool_parser(self) -> ToolCallParser | None:
        match self.calling:
            case "none":
                return None
            case "required":
                return RequiredCallsParser(self.functions)
            case "named":
                return NamedCallParser(self.functions, next(iter(self.functions)))
            case _:
                return self.parser(self.functions)
