"""The two shapes of an answer, whole and in chunks: chat completions and text completions.

Both are made from the same `SequenceOutput`s by the same text pipeline, so the joined deltas of a
stream equal the text of a whole answer.

Source: OpenAI's reference for the objects; vLLM for stop_reason and running usage.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from atom_lite import __version__
from atom_lite.api import sse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atom_lite.api.generation import SequenceOutput

SYSTEM_FINGERPRINT = f"atom_lite-{__version__}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyOptions:
    """What a request says about the form of its answer."""

    request_id: str
    model: str
    stream: bool = False
    usage: bool = False
    running_usage: bool = False


class Reply(ABC):
    """Writes one request's answer; subclasses know the shape of a choice."""

    id_prefix: ClassVar[str]
    whole_object: ClassVar[str]
    chunk_object: ClassVar[str]
    # JSON of a streamed choice around its text, after `"index":N`
    before_text: ClassVar[bytes]
    after_text: ClassVar[bytes]

    def __init__(self, options: ReplyOptions) -> None:
        self.options = options
        self._head: dict[str, Any] = {
            "id": self.id_prefix + options.request_id,
            "object": self.chunk_object if options.stream else self.whole_object,
            "created": int(time.time()),
            "model": options.model,
        }
        self._chunk_start = b"data: " + sse.json_bytes(self._head)[:-1]
        self._choice_start = self._chunk_start + b',"choices":[{"index":'

    @abstractmethod
    def ending_choice(self, output: SequenceOutput) -> dict[str, Any]:
        """The choice of a stream's finish chunk."""

    @abstractmethod
    def whole_choice(self, output: SequenceOutput) -> dict[str, Any]:
        """The choice of a whole answer."""

    # ------------------------------------------------------------ in chunks

    def opening(self, output: SequenceOutput) -> bytes:  # noqa: ARG002  # subclasses use it
        """What a choice's stream begins with; nothing unless the shape has a role."""
        return b""

    def delta(self, output: SequenceOutput, text: str) -> bytes:
        """A chunk with new text."""
        before, after = self.before_text, self.after_text
        usage = self._usage_member(output)
        return b"%b%d%b%b%b%b}\n\n" % (
            self._choice_start,
            output.index,
            before,
            sse.json_text(text),
            after,
            usage,
        )

    def ending(self, output: SequenceOutput) -> bytes:
        """The chunk that says why a choice ended."""
        choice = sse.json_bytes(self.ending_choice(output))
        fingerprint = sse.json_bytes(SYSTEM_FINGERPRINT)
        return b'%b,"choices":[%b],"system_fingerprint":%b%b}\n\n' % (
            self._chunk_start,
            choice,
            fingerprint,
            self._usage_member(output),
        )

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

    def whole(self, outputs: Sequence[SequenceOutput]) -> bytes:
        """The body of an answer that is not streamed."""
        return sse.json_bytes(
            {
                **self._head,
                "choices": [self.whole_choice(output) for output in outputs],
                "usage": usage(outputs),
                "system_fingerprint": SYSTEM_FINGERPRINT,
                "service_tier": None,
            }
        )


class ChatReply(Reply):
    """An assistant message per choice."""

    id_prefix = "chatcmpl-"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"
    before_text = b',"delta":{"content":'
    after_text = b'},"logprobs":null,"finish_reason":null}]'

    def opening(self, output: SequenceOutput) -> bytes:
        """The chunk that carries the role."""
        return b'%b%d,"delta":{"role":"assistant","content":""%b%b}\n\n' % (
            self._choice_start,
            output.index,
            self.after_text,
            self._usage_member(output),
        )

    def ending_choice(self, output: SequenceOutput) -> dict[str, Any]:
        """An empty delta with the reason."""
        return {"index": output.index, "delta": {}, **_reasons(output)}

    def whole_choice(self, output: SequenceOutput) -> dict[str, Any]:
        """The message with the reason."""
        message = {"role": "assistant", "content": output.take_text(), "refusal": None}
        return {"index": output.index, "message": message, **_reasons(output)}


class CompletionReply(Reply):
    """A text per choice."""

    id_prefix = "cmpl-"
    whole_object = "text_completion"
    chunk_object = "text_completion"
    before_text = b',"text":'
    after_text = b',"logprobs":null,"finish_reason":null,"stop_reason":null}]'

    def ending_choice(self, output: SequenceOutput) -> dict[str, Any]:
        """An empty text with the reason."""
        return {"index": output.index, "text": "", **_reasons(output)}

    def whole_choice(self, output: SequenceOutput) -> dict[str, Any]:
        """The text with the reason."""
        return {"index": output.index, "text": output.take_text(), **_reasons(output)}


def _reasons(output: SequenceOutput) -> dict[str, Any]:
    return {
        "logprobs": None,
        "finish_reason": output.finish_reason,
        "stop_reason": output.stop_reason,
    }


def usage(outputs: Sequence[SequenceOutput]) -> dict[str, Any]:
    """The tokens of some or all choices of an answer."""
    prompt = sum(output.num_prompt_tokens for output in outputs)
    completion = sum(output.num_output_tokens for output in outputs)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {
            "cached_tokens": sum(output.num_cached_tokens for output in outputs)
        },
    }
