"""From messages or text to token ids: chat template, then tokenizer.

Long prompts are rendered and encoded in a worker thread. Encoding releases the GIL, so the streams
of other clients go on meanwhile; short prompts stay on the event loop, where a thread hop would
cost more than the work. A text that cannot fit, whatever its tokens are, is refused before: 4 MB of
digits take 800 MB and 7 s.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from atom_lite.api.turns import turn_of
from atom_lite.errors import ConfigError, RequestError
from atom_lite.text.chat_template import ChatTemplate, check_template_kwargs
from atom_lite.text.tool_prompt import knows_tools, teach

if TYPE_CHECKING:
    from atom_lite.api.chat_formats import ChatFormats
    from atom_lite.api.schema_chat import Message, TemplateOptions
    from atom_lite.text.tokenizer import Tokenizer

# About 1 ms of encoding; a thread hop takes about 0.1 ms.
_THREAD_ABOVE_CHARS = 4096
# Where a text need not fit the model's context, it may be this long, and as long as one that does.
_MOST_CHARS = 2 * 1024 * 1024
# What rendering a message costs, however short it is, in characters of encoding.
_CHARS_PER_MESSAGE = 64


class ChatPrompt(NamedTuple):
    """A conversation as the model gets it."""

    token_ids: list[int]
    text: str


class PromptBuilder:
    """Makes prompts of one model.

    Args:
        tokenizer: the served model's.
        override: chat template that takes the place of the model's own.
        max_model_len: tokens that fit the model's context.
        formats: how the model writes calls.
        trusts_requests: whether these may bring a chat template of their own.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        override: str | None,
        max_model_len: int,
        formats: ChatFormats,
        *,
        trusts_requests: bool,
    ) -> None:
        self._formats = formats
        self._tokenizer = tokenizer
        self._max_model_len = max_model_len
        self._trusts_requests = trusts_requests
        self._template = _Template.of(tokenizer, override)

    async def from_text(
        self, text: str, *, add_special_tokens: bool, must_fit: bool = False
    ) -> list[int]:
        """Token ids of a plain prompt.

        Args:
            text: the prompt.
            add_special_tokens: whether those are added that the model begins a text with.
            must_fit: it is to be served whole, so a text that cannot fit need not be encoded.

        Raises:
            RequestError: the text is too long, or no text.
        """
        self._check_length(text, "prompt", must_fit=must_fit)

        def encode() -> list[int]:
            return self._tokenizer.encode(text, add_special_tokens=add_special_tokens)

        return await asyncio.to_thread(encode) if len(text) > _THREAD_ABOVE_CHARS else encode()

    async def from_messages(
        self,
        messages: list[Message],
        options: TemplateOptions,
        *,
        add_special_tokens: bool,
        must_fit: bool = False,
    ) -> ChatPrompt:
        """A conversation, as the model's template writes it.

        Args:
            messages: the conversation.
            options: of the template.
            add_special_tokens: whether more are added than the template writes.
            must_fit: as for `from_text`.

        Raises:
            RequestError: no template, content that is not text, the template refuses, or what it
                writes is too long.
        """
        template = self._template_for(options)
        turns = [
            turn_of(index, message, knows_developer=template.knows_developer)
            for index, message in enumerate(messages)
        ]
        tools = [tool.model_dump(exclude_none=True) for tool in options.usable_tools] or None
        variables = options.template_variables(self._formats.template_defaults)
        check_template_kwargs(variables)

        def render_and_encode() -> ChatPrompt:
            plain = template.knows_tools
            text = template.compiled.render(
                turns if plain else teach(turns, tools, tell_format=self._formats.tells_format),
                add_generation_prompt=options.add_generation_prompt,
                continue_final_message=options.continue_final_message,
                tools=tools if plain else None,
                documents=options.documents,
                **variables,
            )
            self._check_length(text, "messages", must_fit=must_fit)
            ids = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
            return ChatPrompt(ids, text)

        size = sum(len(turn["content"]) + _CHARS_PER_MESSAGE for turn in turns)
        size += sum(len(repr(turn["tool_calls"])) for turn in turns if "tool_calls" in turn)
        size += len(repr(tools))
        if size > _THREAD_ABOVE_CHARS:
            return await asyncio.to_thread(render_and_encode)
        return render_and_encode()

    def _check_length(self, text: str, param: str, *, must_fit: bool) -> None:
        per_token, context = self._tokenizer.most_chars_per_token, self._max_model_len
        fitting = None if per_token is None else context * per_token
        if must_fit and fitting is not None and len(text) > fitting:
            raise RequestError(
                f"This model's maximum context length is {context} tokens. However, your prompt of "
                f"{len(text)} characters has more. Please reduce the length of the prompt.",
                param=param,
                code="context_length_exceeded",
            )
        most = max(_MOST_CHARS, fitting or 0)
        if len(text) > most:
            raise RequestError(
                f"'{param}': a text of {len(text)} characters is longer than the {most} that are "
                "tokenized at once",
                param=param,
            )

    def _template_for(self, options: TemplateOptions) -> _Template:
        """The template of a request.

        Raises:
            RequestError: there is none, or the request's own is not trusted or no template.
        """
        template = self._template
        if options.chat_template is not None:
            if not self._trusts_requests:
                raise RequestError(
                    "'chat_template' needs a server with --trust-request-chat-template",
                    param="chat_template",
                )
            try:
                template = _Template.of(self._tokenizer, options.chat_template)
            except ConfigError as error:
                raise RequestError(str(error), param="chat_template") from error
        if template is None:
            raise RequestError(
                "This model has no chat template; use /v1/completions, or start the server with "
                "--chat-template",
                param="messages",
                code="no_chat_template",
            )
        return template


class _Template(NamedTuple):
    """A compiled chat template and what it can write."""

    compiled: ChatTemplate
    knows_developer: bool
    knows_tools: bool

    @classmethod
    def of(cls, tokenizer: Tokenizer, override: str | None) -> _Template | None:
        """The model's, or what takes its place; None where there is neither."""
        compiled = ChatTemplate.from_tokenizer(tokenizer, override)
        if compiled is None:
            return None
        own = (tokenizer.chat_templates.get(name) for name in ("default", "tool_use"))
        source = override or "".join(filter(None, own))
        return cls(compiled, "developer" in source, knows_tools(source))


def read_template(setting: str | None) -> str | None:
    """The source that `--chat-template` means: a path or the text itself.

    Raises:
        ConfigError: the setting is neither a readable file nor a template, or has a syntax error.
    """
    if setting is None:
        return None
    source = setting
    if "{" not in setting:
        try:
            source = Path(setting).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ConfigError(f"--chat-template {setting}: {error}") from error
    ChatTemplate(source)
    return source
