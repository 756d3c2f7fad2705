"""Text to token ids and back: the frontend's one tokenizer.

A thin, checked layer over `tokenizers.Tokenizer`: it knows the model's special tokens, refuses what
is no text or no token with a `RequestError`, and knows the exact bytes of each token. Runs in the
frontend process, which never imports transformers or torch.

Decoding is defined here, once, for all callers: the bytes of the tokens joined and read as UTF-8,
each invalid byte sequence as U+FFFD. That equals the decoders of `tokenizers` but for one case: of
a run of byte-fallback tokens that is partly invalid, `tokenizers` gives up every character, even
the valid ones that a stream has long sent; here they stay.

Measured: `encode` of the Python binding holds the GIL (1.0 s for 1.5 MB of text); the batch call
releases it (other threads wait 15 ms at most) and skips the offsets that nobody needs, at half the
time. A server's event loop must not stand still for a long prompt, so only the batch call is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from atom_lite.errors import ConfigError, RequestError
from atom_lite.text.checkpoint_files import TokenizerFiles, read_tokenizer
from atom_lite.text.pieces import PieceTable, read_rule

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from tokenizers import Tokenizer as Backend

    from atom_lite.text.pieces import PieceRule


class Tokenizer:
    """Encodes and decodes with the vocabulary of one checkpoint; usable from several threads."""

    def __init__(self, files: TokenizerFiles) -> None:
        self._files = files
        self.backend: Backend = files.backend
        rule = read_rule(self.backend)
        self.pieces = None if rule is None else PieceTable(self.backend, rule)
        vocabulary = self.backend.get_vocab(with_added_tokens=True)
        self.most_chars_per_token = _most_chars_per_token(files.backend, rule, vocabulary)
        self.vocab_size = max(vocabulary.values(), default=-1) + 1
        self.bos_token = files.special_tokens.get("bos_token")
        self.eos_token = files.special_tokens.get("eos_token")
        self.bos_token_id = self._id_of(self.bos_token)
        self.eos_token_id = self._id_of(self.eos_token)
        self.special_tokens = dict(files.special_tokens)
        added = self.backend.get_added_tokens_decoder()
        self.special_token_ids = frozenset(i for i, token in added.items() if token.special)
        self.chat_templates = dict(files.chat_templates)

    @classmethod
    def from_checkpoint(cls, path: Path, *, override: Path | None = None) -> Tokenizer:
        """The tokenizer of a model directory or GGUF file.

        Args:
            path: model directory, or `.gguf` file.
            override: the operator's `--tokenizer`: a directory, tokenizer.json or `.gguf` file that
                is used in place of the model's; chat templates still come from the model where it
                has none.

        Raises:
            ConfigError: when there is no usable tokenizer.
        """
        return cls(read_tokenizer(path, override=override))

    def _id_of(self, token: str | None) -> int | None:
        return None if token is None else self.backend.token_to_id(token)

    @property
    def chat_template(self) -> str | None:
        """The default chat template, or None."""
        return self.chat_templates.get("default")

    def is_special(self, token_id: int) -> bool:
        """Whether a token is a control token, left out of text by `skip_special_tokens`."""
        return token_id in self.special_token_ids

    def special_ids_of(self, texts: Collection[str]) -> frozenset[int]:
        """The control tokens that are written as one of some texts."""
        ids = (self._id_of(text) for text in texts)
        return frozenset(token_id for token_id in ids if token_id in self.special_token_ids)

    # ------------------------------------------------------------ text to ids

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of a text, with BOS and the like if asked for. Releases the GIL.

        Raises:
            RequestError: when the text holds a lone surrogate, which no tokenizer can read.
        """
        check_is_text(text)
        encodings = self.backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = encodings[0].ids
        return ids

    # ------------------------------------------------------------ ids to text

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of token ids.

        Raises:
            RequestError: when an id is outside the vocabulary.
        """
        self._check_in_vocabulary(token_ids)
        if self.pieces is None:
            text: str = self.backend.decode(
                list(token_ids), skip_special_tokens=skip_special_tokens
            )
            return text
        if skip_special_tokens:
            token_ids = [i for i in token_ids if i not in self.special_token_ids]
        pieces = self.pieces
        data, _ = pieces.strip_start(b"".join([pieces[i] for i in token_ids]))
        return data.decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes of one token inside a text; not always valid UTF-8.

        Raises:
            RequestError: when the id is outside the vocabulary.
        """
        self._check_in_vocabulary((token_id,))
        if self.pieces is not None:
            return self.pieces[token_id]
        text: str = self.backend.decode([token_id], skip_special_tokens=False)
        return text.encode()

    def vocabulary(self, size: int) -> list[bytes]:
        """The bytes of each id below `size`; empty where it is no text: control tokens, padding.

        What a grammar is compiled for (`worker/grammar_vocabulary.py`).

        Raises:
            ConfigError: this tokenizer's decoder does not work token by token.
        """
        pieces = self.pieces
        if pieces is None:
            raise ConfigError("this model's tokenizer has no bytes for each token")
        return [b"" if self.is_special(token_id) else pieces[token_id] for token_id in range(size)]

    def _check_in_vocabulary(self, token_ids: Sequence[int]) -> None:
        if token_ids and not (min(token_ids) >= 0 and max(token_ids) < self.vocab_size):
            bad = next(i for i in token_ids if not 0 <= i < self.vocab_size)
            raise RequestError(
                f"token id {bad} is not in the vocabulary (ids 0 to {self.vocab_size - 1})",
                param="tokens",
            )

    # ------------------------------------------------------------ about itself

    def info(self) -> dict[str, object]:
        """What `GET /tokenizer_info` answers: the content of a tokenizer_config.json."""
        defaults: dict[str, object] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "chat_template": self.chat_template,
            "bos_token": self.bos_token,
            "eos_token": self.eos_token,
        }
        return {
            **defaults,
            **self._files.config,
            **self.special_tokens,
            "vocab_size": self.vocab_size,
        }


def _most_chars_per_token(
    backend: Backend, rule: PieceRule | None, vocabulary: dict[str, int]
) -> int | None:
    """How long a text can be that becomes one token; None where there is no telling.

    An unknown token may stand for a text of any length, so only vocabularies that can write every
    byte have a limit. A normalizer may join characters first: Unicode composes up to four.
    """
    if rule is None or not (rule.byte_level or rule.byte_fallback):
        return None
    longest = max(map(len, vocabulary), default=1)
    return longest if backend.normalizer is None else 4 * longest


def check_is_text(text: str, *, param: str | None = None) -> None:
    r"""Refuse a string that is no Unicode text.

    JSON can write half of a surrogate pair (`"\ud83d"`); Python keeps it, and no encoder can.

    Raises:
        RequestError: when the string holds a lone surrogate.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        raise RequestError(
            f"the text holds a lone surrogate (U+{code:04X} at character {error.start}); "
            "send well-formed Unicode",
            param=param,
        ) from error
