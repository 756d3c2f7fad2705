"""Compiled grammars as the compiler process makes them, for a few vocabularies."""

from __future__ import annotations

import functools
import hashlib
import json
from typing import TYPE_CHECKING, Any

from atom_lite.engine.grammar_compiler import GrammarCompiler
from atom_lite.ipc.grammar_messages import GrammarSpec
from atom_lite.messages import Grammar
from atom_lite.worker.grammar_loader import Vocabulary
from tests.fakes.vocabularies import smollm_tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

BACKENDS = ("xgrammar", "guidance")


def letters_vocabulary(vocab_size: int, eos_token_ids: Sequence[int]) -> Vocabulary:
    """One token for each printable ASCII character from id 20 on, some words, the rest no text."""
    texts = [chr(code) for code in range(0x20, 0x7F)] + ["yes", "no", '":', ', "', "true", "12"]
    pieces = [b""] * 20 + [text.encode() for text in texts]
    pieces += [b""] * (vocab_size - len(pieces))
    return Vocabulary(tuple(pieces[:vocab_size]), tuple(eos_token_ids))


@functools.cache
def smollm_vocabulary() -> Vocabulary:
    return Vocabulary(tuple(smollm_tokenizer().vocabulary(49152)), (2,))


@functools.cache
def compiler_of(vocabulary: Vocabulary, backend: str) -> GrammarCompiler:
    return GrammarCompiler(vocabulary.pieces, vocabulary.eos_token_ids, backend)


def make_grammar(
    vocabulary: Vocabulary, kind: str, content: Any, *, backend: str = "auto", **fields: Any
) -> Grammar:
    """A grammar; `content` is text, or what becomes JSON.

    Raises:
        RequestError: as the compiler does.
    """
    text = content if isinstance(content, str) and kind != "json_schema" else json.dumps(content)
    spec = GrammarSpec(kind=kind, text=text, **fields)
    used, compiled = compiler_of(vocabulary, backend).compile(spec)
    key = hashlib.sha256(compiled).hexdigest()
    return Grammar(key=key, backend=used, compiled=compiled)


def text_of(vocabulary: Vocabulary, token_ids: Sequence[int]) -> bytes:
    return b"".join(vocabulary.pieces[token_id] for token_id in token_ids)
