"""Request fields that name tokens, by id or by text: checked against the vocabulary.

An id that the model does not have would index past the logits on the last stage and take the
engine down with it, so none gets past here. Runs in the frontend.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from atom_lite.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from atom_lite.text.tokenizer import Tokenizer

BIAS_LIMIT = 100.0


class NamedTokens:
    """The vocabulary that requests name tokens of.

    Args:
        tokenizer: of the model; its vocabulary may be smaller than the model's.
        vocab_size: of the model.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size

    def check(self, token_ids: Sequence[int], param: str) -> None:
        """Refuse ids outside the model's vocabulary.

        Raises:
            RequestError: 400 that names the id and the limit.
        """
        vocab_size = self._vocab_size
        if not token_ids or (min(token_ids) >= 0 and max(token_ids) < vocab_size):
            return
        bad = next(item for item in token_ids if not 0 <= item < vocab_size)
        raise RequestError(
            f"'{param}': token id {bad} is outside the vocabulary of {vocab_size}", param=param
        )

    def unique(self, token_ids: Sequence[int] | None, param: str) -> tuple[int, ...]:
        """Checked ids, each once.

        Raises:
            RequestError: see `check`.
        """
        if not token_ids:
            return ()
        self.check(token_ids, param)
        return tuple(dict.fromkeys(token_ids))

    def biases(self, logit_bias: Mapping[str, float] | None) -> dict[int, float]:
        """Biases by id; one beyond the limit is taken to mean it, as in vLLM.

        Raises:
            RequestError: see `check`.
        """
        if not logit_bias:
            return {}
        limit = BIAS_LIMIT
        biases = {
            int(token_id): min(limit, max(-limit, bias)) for token_id, bias in logit_bias.items()
        }
        self.check(list(biases), "logit_bias")
        return {token_id: bias for token_id, bias in biases.items() if bias != 0}

    def bad_words(self, words: Sequence[str] | None) -> tuple[tuple[int, ...], ...]:
        """The token sequences that a list of forbidden words means.

        A word stands at the start of a text or after a space, and most vocabularies have a token
        for each, so both are forbidden, unless the second only puts tokens before the first.
        Source: vLLM's `bad_words`, which leaves out a second of another length.
        """
        sequences: dict[tuple[int, ...], None] = {}
        for word in words or ():
            bare = word.lstrip() or word  # a word of spaces alone means just these
            plain, spaced = self._encode(bare), self._encode(" " + bare)
            sequences[plain] = None
            if spaced[-len(plain) :] != plain:
                sequences[spaced] = None
        sequences.pop((), None)
        return tuple(sequences)

    def _encode(self, text: str) -> tuple[int, ...]:
        ids = self._tokenizer.encode(text, add_special_tokens=False)
        self.check(ids, "bad_words")
        return tuple(ids)
