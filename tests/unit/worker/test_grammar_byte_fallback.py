"""Masks over a vocabulary as SentencePiece makes it: a space marker, tokens of single bytes."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np
import pytest

from atom_lite.worker.grammar_loader import GrammarLoader, Vocabulary
from atom_lite.worker.token_masks import full_masks
from tests.fakes.grammars import BACKENDS, make_grammar
from tests.fakes.vocabularies import byte_fallback_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator

EOS = 2
# of whole words, of letters, of bytes for what the vocabulary lacks; spaces at both ends
TEXTS = (
    "hello the world",
    " the  hello ",
    "\xe9 and \u8a9e",
    "\u65e5\U0001f600 hello, x!",
    "a\nb\t",
)


@functools.cache
def vocabulary() -> Vocabulary:
    tokenizer = byte_fallback_tokenizer()
    return Vocabulary(tuple(tokenizer.vocabulary(tokenizer.vocab_size)), (EOS,))


@functools.cache
def loader() -> GrammarLoader:
    return GrammarLoader(vocabulary)


def goes_on_with(rest: bytes) -> list[int]:
    """The tokens that come next in a text of which this is left."""
    if not rest:
        return [EOS]
    return [i for i, piece in enumerate(vocabulary().pieces) if piece and rest.startswith(piece)]


def ways(text: bytes) -> Iterator[list[int]]:
    """The text in its longest tokens, and in its shortest."""
    for best in (max, min):
        token_ids, rest = [], text
        while rest:
            token_id = best(goes_on_with(rest), key=lambda i: len(vocabulary().pieces[i]))
            token_ids.append(token_id)
            rest = rest.removeprefix(vocabulary().pieces[token_id])
        yield token_ids


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("text", TEXTS)
def test_every_way_to_write_a_text_is_allowed_and_nothing_else(backend: str, text: str) -> None:
    grammar = make_grammar(vocabulary(), "choice", [text], backend=backend)
    masks = full_masks(1, len(vocabulary().pieces))
    for token_ids in ways(text.encode()):
        follower = loader().follower(grammar, []).result()
        rest = text.encode()
        for token_id in [*token_ids, EOS]:
            follower.fill(masks, 0)
            bits = np.unpackbits(masks.view(np.uint8)[0], bitorder="little")
            allowed = np.flatnonzero(bits[: len(vocabulary().pieces)]).tolist()
            assert allowed == goes_on_with(rest)
            follower.advance([token_id])
            rest = rest.removeprefix(vocabulary().pieces[token_id])
        assert rest == b""


@pytest.mark.parametrize("text", [text for text in TEXTS if not text.startswith(" ")])
def test_what_the_masks_allow_reads_as_the_text(text: str) -> None:
    for token_ids in ways(text.encode()):
        assert byte_fallback_tokenizer().decode(token_ids) == text
