"""The body of POST /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from atom_lite.api.faults import conflict
from atom_lite.api.schema import GenerationRequest, JsonObject, RequestBody
from atom_lite.api.schema_sampling import NaturalInt, NumLogprobs  # noqa: TC001  # pydantic reads it
from atom_lite.api.schema_tools import MessageToolCall, ToolFields

MAX_TEMPLATE_CHARS = 100_000
_TEXT_PARTS = ("text", "input_text", "output_text")


class ContentPart(JsonObject):
    """One piece of a message. Only text is served; other types are refused by name."""

    type: str = "text"
    text: str | None = None

    @property
    def is_text(self) -> bool:
        """Whether this part is text and has some."""
        return self.type in _TEXT_PARTS and self.text is not None


class Message(JsonObject):
    """One turn. Roles beyond the usual five are the template's business."""

    role: Annotated[str, Field(min_length=1, max_length=64)]
    content: str | Annotated[list[ContentPart], Field(fail_fast=True)] | None = None
    name: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: Annotated[list[MessageToolCall], Field(fail_fast=True)] | None = None
    tool_call_id: str | None = None


class TemplateOptions(RequestBody, ToolFields):
    """How messages become a prompt; shared with /tokenize."""

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template: Annotated[str, Field(min_length=1, max_length=MAX_TEMPLATE_CHARS)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: Annotated[list[dict[str, Any]], Field(fail_fast=True)] | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = (
        None
    )

    @model_validator(mode="after")
    def _check_ending(self) -> TemplateOptions:
        if self.add_generation_prompt and self.continue_final_message:
            raise conflict(
                "continue_final_message",
                "'continue_final_message' and 'add_generation_prompt' exclude each other; "
                "send 'add_generation_prompt': false",
            )
        return self

    def template_variables(self, defaults: dict[str, Any]) -> dict[str, Any]:
        """The template's variables: of the request, then what its effort means, then the server's.

        Args:
            defaults: the server's.
        """
        effort: dict[str, Any] = {}
        if self.reasoning_effort is not None:
            effort["reasoning_effort"] = self.reasoning_effort
            if self.reasoning_effort == "none":
                effort["enable_thinking"] = False
        return {**defaults, **effort, **(self.chat_template_kwargs or {})}


class ChatCompletionRequest(TemplateOptions, GenerationRequest):
    """Messages in, one assistant message out."""

    prompt_param = "messages"
    num_logprobs_param = "top_logprobs"

    # fail_fast: a long list of the wrong type is refused at its first item, not after all of them
    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    add_special_tokens: bool = False  # the template writes them itself
    logprobs: bool | None = None
    top_logprobs: NumLogprobs | None = None  # OpenAI allows 20, see --max-logprobs
    include_reasoning: bool | None = None
    thinking_token_budget: NaturalInt | None = None

    @model_validator(mode="after")
    def _check_forms(self) -> ChatCompletionRequest:
        if self.calling in ("required", "named") and self.stated_forms:
            raise conflict(
                self.stated_forms[0],
                f"'{self.stated_forms[0]}' and a 'tool_choice' that demands a call exclude each "
                "other: one form per request",
            )
        return self

    @model_validator(mode="after")
    def _check_logprobs(self) -> ChatCompletionRequest:
        if self.top_logprobs and not self.logprobs:
            raise conflict(
                "top_logprobs", f"'top_logprobs' = {self.top_logprobs} needs 'logprobs': true"
            )
        return self

    @property
    def num_logprobs(self) -> int | None:
        """Alternatives told with each output token."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def echoed_text(self) -> str:
        """What `echo` puts before the answer: the last message if it is the assistant's (vLLM)."""
        return self.last_text if self.echo and self.messages[-1].role == "assistant" else ""

    @property
    def last_text(self) -> str:
        """The text of the last message."""
        last = self.messages[-1]
        if isinstance(last.content, list):
            return "\n".join(part.text or "" for part in last.content)
        return last.content or ""
