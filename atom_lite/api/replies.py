"""The two shapes of an answer, whole and in chunks: chat completions and text completions.

Both are made from the same `SequenceOutput`s by the same text pipeline, so the joined deltas of a
stream equal the text of a whole answer, and so do the lists beside it (log probabilities, token
ids).

Source: OpenAI's reference for the objects; vLLM for stop_reason, running usage, token_ids and
prompt_logprobs.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from atom_lite import __version__
from atom_lite.api import sse
from atom_lite.api.chat_message import delta_of, message_of
from atom_lite.api.logprobs import LogprobWriter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atom_lite.api.generation import Generation, SequenceOutput
    from atom_lite.api.logprobs import TokenTable
    from atom_lite.api.reply_options import ReplyOptions
    from atom_lite.text.listed_tokens import ListedToken
    from atom_lite.text.tool_calls.parts import Part

SYSTEM_FINGERPRINT = f"atom_lite-{__version__}"
_NO_LISTS = b',"logprobs":null'


class Reply(ABC):
    """Writes one request's answer; subclasses know the shape of a choice.

    Args:
        options: what the request says about the form of its answer.
        table: of the tokens that the answer may name.
    """

    id_prefix: ClassVar[str]
    whole_object: ClassVar[str]
    chunk_object: ClassVar[str]
    # JSON of a streamed choice: after `"index":N`, after its text, and after the lists beside it
    before_text: ClassVar[bytes]
    after_text: ClassVar[bytes]
    after_lists: ClassVar[bytes]

    def __init__(self, options: ReplyOptions, table: TokenTable) -> None:
        self.options = options
        num_top, as_ids = options.num_logprobs, options.tokens_as_ids
        self._logprobs = None
        if num_top is not None:
            self._logprobs = LogprobWriter(table, num_top, tokens_as_ids=as_ids)
        self._prompt_logprobs = None
        if options.num_prompt_logprobs is not None:
            number = options.num_prompt_logprobs
            self._prompt_logprobs = LogprobWriter(table, number, tokens_as_ids=as_ids)
        self._lists = self._logprobs is not None or options.token_ids
        self._head: dict[str, Any] = {
            "id": self.id_prefix + options.request_id,
            "object": self.chunk_object if options.stream else self.whole_object,
            "created": int(time.time()),
            "model": options.model,
        }
        self._chunk_start = b"data: " + sse.json_line(self._head)[:-1]
        self._choice_start = self._chunk_start + b',"choices":[{"index":'

    @abstractmethod
    def write_logprobs(self, writer: LogprobWriter, tokens: list[ListedToken]) -> bytes:
        """The `logprobs` member of a choice for some of its tokens."""

    @abstractmethod
    def ending_choice(self) -> dict[str, Any]:
        """What a stream's finish chunk says in place of text."""

    @abstractmethod
    def whole_choice(self, output: SequenceOutput) -> dict[str, Any]:
        """What a whole answer says of a choice: text, lists, and what it tells of the prompt."""

    def whole_members(self, _outputs: Sequence[SequenceOutput]) -> dict[str, Any]:
        """What a whole answer says besides its choices and usage."""
        return {}

    # ------------------------------------------------------------ in chunks

    def opening(self, output: SequenceOutput) -> bytes:  # noqa: ARG002  # subclasses use it
        """What a choice's stream begins with; nothing unless the shape or the request has some."""
        return b""

    def part(self, output: SequenceOutput, part: Part, tokens: list[ListedToken]) -> bytes:
        """A chunk with a part of the answer, and the tokens that are listed with it."""
        return self.delta(output, part.text, tokens)

    def delta(self, output: SequenceOutput, text: str, tokens: list[ListedToken]) -> bytes:
        """A chunk with new text."""
        return self.chunk(output, self.before_text + sse.json_text(text) + self.after_text, tokens)

    def chunk(self, output: SequenceOutput, members: bytes, tokens: list[ListedToken]) -> bytes:
        """A chunk with some members of a choice, and tokens that are listed with it."""
        return b"%b%d%b%b%b%b}\n\n" % (
            self._choice_start,
            output.index,
            members,
            self._list_members(output, tokens) if self._lists else _NO_LISTS,
            self.after_lists,
            self._usage_member(output),
        )

    def ending(self, output: SequenceOutput, tokens: list[ListedToken]) -> bytes:
        """The chunk that says why a choice ended, with the tokens that no text came with."""
        choice = {
            "index": output.index,
            **self.ending_choice(),
            **self._lists_of(self.placed(output, tokens)),
            **_reasons(output),
        }
        return b'%b,"choices":[%b],"system_fingerprint":%b%b}\n\n' % (
            self._chunk_start,
            sse.json_line(choice),
            sse.json_bytes(SYSTEM_FINGERPRINT),
            self._usage_member(output),
        )

    def written(
        self, output: SequenceOutput, parts: list[Part], tokens: list[ListedToken], ends: bool
    ) -> bytes:
        """What is new of a choice: a chunk for each part, and one that ends it."""
        chunks = []
        for part in parts:
            chunks.append(self.part(output, part, tokens))
            tokens = []
        if ends:
            chunks.append(self.ending(output, tokens))
        return b"".join(chunks)

    def closing(self, outputs: Sequence[SequenceOutput]) -> bytes:
        """What a stream ends with."""
        if not self.options.usage:
            return sse.DONE
        return sse.event({**self._head, "choices": [], "usage": usage(outputs)}) + sse.DONE

    def _usage_member(self, output: SequenceOutput) -> bytes:
        """Null in all chunks but the last, as OpenAI has it, unless running usage is asked for."""
        if self.options.running_usage:
            return b',"usage":' + sse.json_bytes(usage([output]))
        return b',"usage":null' if self.options.usage else b""

    # ------------------------------------------------------------ whole

    def whole(self, generation: Generation) -> bytes:
        """The body of an answer that is not streamed."""
        choices = []
        for index, output in enumerate(generation.choices):
            choice = self.whole_choice(output)
            choices.append({"index": index, **choice, **_reasons(output)})
        return sse.json_bytes(
            {
                **self._head,
                "choices": choices,
                "usage": usage(generation.outputs),
                "system_fingerprint": SYSTEM_FINGERPRINT,
                "service_tier": None,
                **self.whole_members(generation.outputs),
            }
        )

    # ------------------------------------------------------------ lists beside the text

    def _list_members(self, output: SequenceOutput, tokens: list[ListedToken]) -> bytes:
        return b"," + sse.json_bytes(self._lists_of(self.placed(output, tokens)))[1:-1]

    def placed(self, output: SequenceOutput, tokens: list[ListedToken]) -> list[ListedToken]:  # noqa: ARG002
        """The tokens where they stand in the choice's text, which may begin before the output."""
        return tokens

    def _lists_of(
        self, tokens: list[ListedToken], echoed: Sequence[ListedToken] = ()
    ) -> dict[str, Any]:
        """The lists of a choice; those of an echoed prompt are told of, but are no output ids."""
        members: dict[str, Any] = {"logprobs": None}
        if self._logprobs is not None:
            members["logprobs"] = msgspec.Raw(
                self.write_logprobs(self._logprobs, [*echoed, *tokens])
            )
        if self.options.token_ids:
            members["token_ids"] = [token.token_id for token in tokens]
        return members

    def num_prompt_figures(self, output: SequenceOutput) -> int:
        """How many log probabilities of its prompt a choice tells."""
        number = 0
        if self.options.echo and self.options.num_logprobs is not None:
            number += self.options.num_logprobs + 1
        if self.options.num_prompt_logprobs is not None:
            number += self.options.num_prompt_logprobs + 1
        return number * len(output.prompt.token_ids)

    def num_output_figures(self, num_tokens: int) -> int:
        """How many it tells of so many tokens of its output."""
        if self.options.num_logprobs is None:
            return 0
        return (self.options.num_logprobs + 1) * num_tokens

    def num_figures(self, output: SequenceOutput) -> int:
        """How many a choice tells in all."""
        return self.num_prompt_figures(output) + self.num_output_figures(output.num_output_tokens)

    def _told_of_prompt(self, output: SequenceOutput) -> dict[str, Any]:
        members: dict[str, Any] = {}
        if self._prompt_logprobs is not None:
            told = self._prompt_logprobs.prompt(output.prompt.logprobs)
            members["prompt_logprobs"] = msgspec.Raw(told)
        if self.options.token_ids:
            members["prompt_token_ids"] = output.prompt.token_ids
        return members


class ChatReply(Reply):
    """An assistant message per choice."""

    id_prefix = "chatcmpl-"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"
    before_text = b',"delta":{"content":'
    after_text = b"}"
    after_lists = b',"finish_reason":null}]'

    def __init__(
        self, options: ReplyOptions, table: TokenTable, *, short_call_ids: bool = False
    ) -> None:
        super().__init__(options, table)
        self._short_call_ids = short_call_ids

    def part(self, output: SequenceOutput, part: Part, tokens: list[ListedToken]) -> bytes:
        """A chunk with a part of the message."""
        if part.kind == "content":
            return self.delta(output, part.text, tokens)
        delta = delta_of(part, short_ids=self._short_call_ids)
        return self.chunk(output, b',"delta":' + delta, tokens)

    def opening(self, output: SequenceOutput) -> bytes:
        """The chunk that carries the role, and the message that the answer continues."""
        told = b""
        if self.options.token_ids:
            told = b',"prompt_token_ids":' + sse.json_bytes(output.prompt.token_ids)
        role = b'%b%d,"delta":{"role":"assistant","content":""}%b%b%b%b}\n\n' % (
            self._choice_start,
            output.index,
            _NO_LISTS,
            self.after_lists,
            told,
            self._usage_member(output),
        )
        echo = self.options.echoed_text
        return role + self.delta(output, echo, []) if echo else role

    def write_logprobs(self, writer: LogprobWriter, tokens: list[ListedToken]) -> bytes:
        """One entry per token."""
        return writer.chat(tokens)

    def ending_choice(self) -> dict[str, Any]:
        """An empty delta."""
        return {"delta": {}}

    def whole_choice(self, output: SequenceOutput) -> dict[str, Any]:
        """The message."""
        message = message_of(
            output.take_parts(), before=self.options.echoed_text, short_ids=self._short_call_ids
        )
        return {"message": message, **self._lists_of(output.take_tokens())}

    def whole_members(self, outputs: Sequence[SequenceOutput]) -> dict[str, Any]:
        """What is told of the one prompt."""
        return self._told_of_prompt(outputs[0])


class CompletionReply(Reply):
    """A text per choice, after the prompt's where that is echoed."""

    id_prefix = "cmpl-"
    whole_object = "text_completion"
    chunk_object = "text_completion"
    before_text = b',"text":'
    after_text = b""
    after_lists = b',"finish_reason":null,"stop_reason":null}]'

    def opening(self, output: SequenceOutput) -> bytes:
        """The prompt, where it is echoed or its ids are asked for."""
        if not (self.options.echo or self.options.token_ids):
            return b""
        prompt = output.prompt
        choice: dict[str, Any] = {
            "index": output.index,
            "text": prompt.text if self.options.echo else "",
            "logprobs": None,
            "finish_reason": None,
            "stop_reason": None,
        }
        if self.options.echo and self._logprobs is not None:
            choice["logprobs"] = msgspec.Raw(self._logprobs.completion(prompt.tokens))
        if self.options.token_ids:
            choice |= {"prompt_token_ids": prompt.token_ids, "token_ids": []}
        return b'%b,"choices":[%b]%b}\n\n' % (
            self._chunk_start,
            sse.json_line(choice),
            self._usage_member(output),
        )

    def write_logprobs(self, writer: LogprobWriter, tokens: list[ListedToken]) -> bytes:
        """Four lists of one length."""
        return writer.completion(tokens)

    def placed(self, output: SequenceOutput, tokens: list[ListedToken]) -> list[ListedToken]:
        """The output's tokens after an echoed prompt's text."""
        if not self.options.echo:
            return tokens
        length = len(output.prompt.text)
        return [token._replace(start=length + token.start) for token in tokens]

    def ending_choice(self) -> dict[str, Any]:
        """An empty text."""
        return {"text": ""}

    def whole_choice(self, output: SequenceOutput) -> dict[str, Any]:
        """The text."""
        text, tokens = output.take_text(), self.placed(output, output.take_tokens())
        echoed: list[ListedToken] = []
        if self.options.echo:
            text = output.prompt.text + text
            echoed = output.prompt.tokens if self._logprobs is not None else []
        return {"text": text, **self._lists_of(tokens, echoed), **self._told_of_prompt(output)}


def _reasons(output: SequenceOutput) -> dict[str, Any]:
    return {"finish_reason": output.told_finish_reason, "stop_reason": output.stop_reason}


def usage(outputs: Sequence[SequenceOutput]) -> dict[str, Any]:
    """The tokens of some or all sequences of an answer; each prompt counts once.

    How much of a prompt was cached is what its first sequence found: the others find what that one
    has just computed.
    """
    first_of_prompt = {id(output.prompt): output for output in reversed(outputs)}.values()
    prompt = sum(len(output.prompt.token_ids) for output in first_of_prompt)
    completion = sum(output.num_output_tokens for output in outputs)
    told: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {
            "cached_tokens": sum(output.num_cached_tokens for output in first_of_prompt)
        },
    }
    thoughts = [output.num_thought_tokens for output in outputs]
    if any(number is not None for number in thoughts):
        told["completion_tokens_details"] = {"reasoning_tokens": sum(filter(None, thoughts))}
    return told
