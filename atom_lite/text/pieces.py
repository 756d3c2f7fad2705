r"""Which bytes each token stands for, read off a tokenizer's decoder.

Decoding is then joining bytes, so a stream can be decoded token by token at a cost that does not
grow with the text. Two families of decoders work so, and they cover nearly every language model:

    byte level       "\u0120Zo\u00c3" -> 20 5a 6f c3         (GPT-2, Llama 3, Qwen, SmolLM)
    byte fallback    "\u2581the" -> " the", "<0xE3>" -> e3    (Llama 2, Mistral, Gemma); a text's
                     first space may be the vocabulary's own and is then stripped

A decoder of another kind has no such table (`read_rule` is None), and callers decode whole ids.
Runs in the frontend.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atom_lite.text.byte_alphabet import unspell

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceRule:
    """How a token's spelling becomes its bytes.

    Attributes:
        byte_level: the spelling is in the byte alphabet.
        replacements: (spelled, meant) pairs, applied in order; unused when `byte_level`.
        byte_fallback: `<0xE3>` is one byte.
        strip: what is removed from the start of a whole text, up to `strip_count` times.
    """

    byte_level: bool = False
    replacements: tuple[tuple[str, str], ...] = ()
    byte_fallback: bool = False
    strip: str = ""
    strip_count: int = 0

    def piece(self, token: str) -> bytes:
        """The bytes of a token, whatever stands before it."""
        if self.byte_level:
            return unspell(token)
        for spelled, meant in self.replacements:
            token = token.replace(spelled, meant)
        if self.byte_fallback and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(match[1], 16)])
        return token.encode()


def read_rule(backend: Tokenizer) -> PieceRule | None:
    """The rule of this tokenizer's decoder; None when its decoder does not work token by token."""
    if backend.decoder is None:
        return None
    description = json.loads(backend.decoder.__getstate__())
    steps = description["decoders"] if description["type"] == "Sequence" else [description]
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return PieceRule(byte_level=True)
    if "Fuse" not in kinds:
        return None
    fuse = kinds.index("Fuse")
    return _fallback_rule(steps[:fuse], steps[fuse + 1 :])


def _fallback_rule(
    before_fuse: list[dict[str, Any]], after_fuse: list[dict[str, Any]]
) -> PieceRule | None:
    """The rule of [Replace..., ByteFallback?] Fuse [Strip?]; None for any other order or step."""
    kinds = [step["type"] for step in before_fuse]
    byte_fallback = kinds[-1:] == ["ByteFallback"]
    replaces = before_fuse[:-1] if byte_fallback else before_fuse
    replacements = []
    for step in replaces:
        if step["type"] != "Replace" or "String" not in step["pattern"]:
            return None
        replacements.append((step["pattern"]["String"], step["content"]))
    strip, count = "", 0
    if after_fuse:
        if len(after_fuse) > 1 or after_fuse[0]["type"] != "Strip" or after_fuse[0]["stop"]:
            return None
        strip, count = after_fuse[0]["content"], after_fuse[0]["start"]
    return PieceRule(
        replacements=tuple(replacements),
        byte_fallback=byte_fallback,
        strip=strip,
        strip_count=count,
    )


class PieceTable:
    """The bytes of every token, looked up once per token id and kept.

    Ids that the tokenizer does not know (a model's vocabulary is often padded) have no bytes, as in
    `tokenizers`.
    """

    def __init__(self, backend: Tokenizer, rule: PieceRule) -> None:
        self._backend = backend
        self.rule = rule
        self._pieces: dict[int, bytes] = {}

    def __getitem__(self, token_id: int) -> bytes:
        piece = self._pieces.get(token_id)
        if piece is None:
            token = self._backend.id_to_token(token_id)
            piece = b"" if token is None else self.rule.piece(token)
            self._pieces[token_id] = piece
        return piece

    def strip_start(self, data: bytes, already_stripped: int = 0) -> tuple[bytes, int]:
        """Take the decoder's strip off the start of a text.

        Returns:
            The rest, and how many strips are done; the caller stops once the rest is not empty.
        """
        content = self.rule.strip.encode()
        done = already_stripped
        while content and done < self.rule.strip_count and data.startswith(content):
            data = data[len(content) :]
            done += 1
        return data, done
