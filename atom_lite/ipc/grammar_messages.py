"""What the frontend and the grammar compiler say to each other, and how it becomes bytes on a pipe.

A frame is four bytes of length, big-endian, then msgpack. Kept apart from `messages.py` because
no engine ever sees these: an engine gets finished `messages.Grammar`s.

    frontend -> compiler   GrammarCompilerSetup once, then CompileGrammar
    compiler -> frontend   GrammarCompiled or GrammarRefused, one for each, in any order
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from atom_lite.errors import EngineError

LENGTH_BYTES = 4
# Above any vocabulary (a million tokens are about 10 MB) and any grammar that is let out.
MAX_FRAME_BYTES = 256 * 1024 * 1024


class GrammarSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an output must look like, as a client says it; the many request fields become this.

    `text` is JSON where `kind` is json_schema, choice (a list of strings) or structural_tag.
    """

    kind: Literal["json_schema", "regex", "choice", "grammar", "structural_tag"]
    text: str
    # between the tokens of JSON: a little by default, none, or what this regular expression matches
    any_whitespace: bool = True
    whitespace_pattern: str | None = None
    # an object that lists `properties` has no others unless its schema says so; if False, only
    # where no schema is put together from several
    close_objects: bool = False


class GrammarCompilerSetup(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The first message. `pieces[i]` are the bytes of token i, empty if it is no text."""

    pieces: list[bytes]
    eos_token_ids: list[int]
    backend: str  # "auto", "xgrammar" or "guidance"
    timeout_seconds: float  # for one grammar
    memory_bytes: int  # for one grammar


class CompileGrammar(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Answered once, with the same number."""

    number: int
    spec: GrammarSpec


class GrammarCompiled(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The fields of a `messages.Grammar`."""

    number: int
    backend: Literal["xgrammar", "guidance"]
    compiled: bytes


class GrammarRefused(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Why a grammar cannot be used.

    `fault`: "wrong" will be refused again; "costly" took too long or too much memory, which may
    have been the machine's; "busy" was not tried to the end, because too many others are slow.
    """

    number: int
    reason: str
    fault: Literal["wrong", "costly", "busy"] = "wrong"


GrammarQuestion: TypeAlias = GrammarCompilerSetup | CompileGrammar
GrammarAnswer: TypeAlias = GrammarCompiled | GrammarRefused

_encoder = msgspec.msgpack.Encoder()
_question_decoder = msgspec.msgpack.Decoder(GrammarQuestion)
_answer_decoder = msgspec.msgpack.Decoder(GrammarAnswer)


def encode_frame(message: GrammarQuestion | GrammarAnswer) -> bytes:
    """A whole frame."""
    body = _encoder.encode(message)
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def body_length(prefix: bytes) -> int:
    """The length that a frame's first bytes announce.

    Raises:
        EngineError: it is beyond reason, so what comes is no frame; the reader gives up.
    """
    length = int.from_bytes(prefix, "big")
    if length > MAX_FRAME_BYTES:
        raise EngineError(f"a frame of {length} bytes on the grammar compiler's pipe")
    return length


def decode_question(body: bytes) -> GrammarQuestion:
    """A message to the compiler; msgspec.ValidationError for anything else."""
    message: GrammarQuestion = _question_decoder.decode(body)
    return message


def decode_answer(body: bytes) -> GrammarAnswer:
    """A message from the compiler; msgspec.ValidationError for anything else."""
    message: GrammarAnswer = _answer_decoder.decode(body)
    return message
