"""Render chat messages with a model's Jinja template, as transformers does.

Templates are the model's: programs that come with the weights, so they run in Jinja's immutable
sandbox. Messages, tools and extra arguments are the client's, and reach the template as plain JSON
data only. What a template refuses (`raise_exception`) or chokes on is the client's 400, with the
template's own words. Runs in the frontend.

Source: transformers' `apply_chat_template`, whose environment and preparation of messages this
follows; the tests compare the two.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

import jinja2
import jinja2.exceptions
import jinja2.ext
import jinja2.nodes
import jinja2.utils
from jinja2.sandbox import ImmutableSandboxedEnvironment

from atom_lite.errors import ConfigError, RequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from jinja2.parser import Parser

    from atom_lite.text.tokenizer import Tokenizer

# Names a message's reasoning goes under; the first is what most templates read.
_REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
# Marks the end of the message to continue. The space shows whether the template trims content.
_CONTINUE_MARK = "CONTINUE_FINAL_MESSAGE_TAG "
# The arguments of `render`, which extra arguments must not stand in for.
_RESERVED = frozenset(
    ("messages", "tools", "documents", "add_generation_prompt", "continue_final_message")
)
# What a template that is not made for these messages may raise, besides Jinja's own errors.
_TEMPLATE_FAULTS = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)


class ChatTemplate:
    """A compiled chat template; renders are independent and may run in several threads."""

    def __init__(
        self,
        source: str,
        *,
        bos_token: str | None = None,
        eos_token: str | None = None,
        special_tokens: Mapping[str, str] | None = None,
        tool_use_source: str | None = None,
    ) -> None:
        """Compile a template.

        Args:
            source: Jinja text.
            bos_token: what the template sees under this name; None leaves it undefined.
            eos_token: likewise.
            special_tokens: further ones by name.
            tool_use_source: the template for requests with tools, where a model has its own.

        Raises:
            ConfigError: when the text is no valid template.
        """
        self._default = (source, _compile(source))
        with_tools = tool_use_source or source
        self._tool_use = (with_tools, _compile(with_tools))
        named = {**(special_tokens or {}), "bos_token": bos_token, "eos_token": eos_token}
        self._special_tokens = {name: token for name, token in named.items() if token is not None}

    @classmethod
    def from_tokenizer(cls, tokenizer: Tokenizer, source: str | None = None) -> ChatTemplate | None:
        """The template of a model, or None when it has none.

        Args:
            tokenizer: of the model.
            source: Jinja text that takes the place of the model's own template.
        """
        default = source or tokenizer.chat_template
        if default is None:
            return None
        return cls(
            default,
            bos_token=tokenizer.bos_token,
            eos_token=tokenizer.eos_token,
            special_tokens=tokenizer.special_tokens,
            tool_use_source=None if source else tokenizer.chat_templates.get("tool_use"),
        )

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> str:
        """The prompt text of a conversation; to be encoded without adding special tokens.

        Args:
            messages: JSON objects with role, content and so on; not changed.
            add_generation_prompt: end with the start of an assistant message.
            continue_final_message: end inside the last message, for the model to go on with it.
            tools: JSON schemas of functions.
            documents: for retrieval.
            kwargs: extra variables of the template; a client's pass `check_template_kwargs` first.

        Raises:
            RequestError: when the template refuses the messages or cannot render them.
        """
        if continue_final_message and add_generation_prompt:
            raise _cannot_continue("add_generation_prompt starts another one")
        check_template_kwargs(kwargs)
        source, template = self._default if tools is None else self._tool_use
        prepared = [_prepare(message) for message in messages]
        final_text = _mark_final(prepared, source) if continue_final_message else ""
        variables = {
            **self._special_tokens,
            **kwargs,
            "messages": prepared,
            "tools": tools,
            "documents": documents,
            "add_generation_prompt": add_generation_prompt,
        }
        text = _render(template, variables)
        return _cut_at_mark(text, final_text) if continue_final_message else text


def check_template_kwargs(kwargs: Mapping[str, Any]) -> None:
    """Refuse a client's `chat_template_kwargs` that would stand in for the request's own fields.

    Raises:
        RequestError: naming the first of them.
    """
    if reserved := sorted(_RESERVED & kwargs.keys()):
        raise RequestError(
            f"chat_template_kwargs must not hold {reserved[0]!r}, a field of its own",
            param="chat_template_kwargs",
        )


# ---------------------------------------------------------------- messages


def _prepare(message: Mapping[str, Any]) -> dict[str, Any]:
    """A copy without null fields, which templates would print; reasoning under all names."""
    kept = {key: value for key, value in message.items() if value is not None}
    reasoning = next((kept[name] for name in _REASONING_FIELDS if name in kept), None)
    if reasoning is None:
        return kept
    return {"thinking": reasoning, **kept, "reasoning_content": reasoning}


def _mark_final(messages: list[dict[str, Any]], source: str) -> str:
    """Put the mark at the end of the last message's text; returns that text."""
    content = messages[-1].get("content") if messages else None
    if "content" not in source or content is None:
        raise _cannot_continue("there is no final message with content")
    if isinstance(content, str):
        messages[-1]["content"] = content + _CONTINUE_MARK
        return content
    parts = [dict(part) for part in content]
    for part in reversed(parts):
        if isinstance(text := part.get("text"), str):
            part["text"] = text + _CONTINUE_MARK
            messages[-1]["content"] = parts
            return text
    raise _cannot_continue("its content has no text")


def _cut_at_mark(rendered: str, final_text: str) -> str:
    at = rendered.rfind(_CONTINUE_MARK.strip())
    if at < 0 or final_text.strip() not in rendered:
        raise _cannot_continue("the chat template leaves out part of it")
    if rendered.startswith(_CONTINUE_MARK, at):
        return rendered[:at]
    return rendered[:at].rstrip()  # the template trims content


def _cannot_continue(reason: str) -> RequestError:
    return RequestError(
        f"cannot continue the final message: {reason}", param="continue_final_message"
    )


# ---------------------------------------------------------------- the Jinja environment


def _compile(source: str) -> jinja2.Template:
    try:
        return _ENVIRONMENT.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError(
            f"the chat template has a syntax error in line {error.lineno}: {error.message}"
        ) from error


def _render(template: jinja2.Template, variables: Mapping[str, Any]) -> str:
    try:
        return template.render(variables)
    except _TEMPLATE_FAULTS as error:
        raise RequestError(
            f"the chat template cannot render the messages: {error}", param="messages"
        ) from error


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as models were trained on it: Jinja's own filter escapes <, > and & for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


class _GenerationTag(jinja2.ext.Extension):
    """Accepts `{% generation %}`, which marks assistant text for training; it renders its body."""

    tags = {"generation"}  # noqa: RUF012  (the type that Jinja declares)

    def parse(self, parser: Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_render_body")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _render_body(self, caller: Callable[[], str]) -> str:
        return caller()


class _TemplateDict:
    """`dict` as templates use it, without the class's other attributes."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args, **kwargs)


class _TemplateNamespace(jinja2.utils.Namespace):
    """A namespace that takes no underscore names, so nothing of Python's can be replaced in it."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        # As in Jinja: all names stay free for the template, `self` too.
        self, rest = args[0], args[1:]
        attributes = dict(*rest, **kwargs)
        for name in attributes:
            _check_attribute(name)
        jinja2.utils.Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_attribute(name)
        super().__setitem__(name, value)


def _check_attribute(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace cannot hold the attribute {name!r}")


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationTag, jinja2.ext.loopcontrols],
    )
    environment.filters["tojson"] = _tojson
    environment.globals.update(
        raise_exception=_raise_exception,
        strftime_now=_strftime_now,
        dict=_TemplateDict(),
        namespace=_TemplateNamespace,
    )
    return environment


_ENVIRONMENT = _environment()
