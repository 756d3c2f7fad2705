"""Build a `tokenizers.Tokenizer` from the metadata of a GGUF file.

A GGUF file has no tokenizer.json: it has tokens, their types, and merges or scores. Two kinds are
built here, named by `tokenizer.ggml.model`:

    gpt2    byte-level BPE (GPT-2, Llama 3, Qwen, SmolLM, ...)
    llama   SentencePiece-style BPE with byte fallback (Llama 2, Mistral, TinyLlama, ...)

Others are refused with their name. Runs in the frontend; never imports transformers, whose own
conversion needs 4 s and does not know every pre-tokenizer.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, cast

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
)

from atom_lite.errors import ConfigError
from atom_lite.text.byte_alphabet import BYTE_OF_LETTER, spell
from atom_lite.text.gguf_pre_tokenizers import pre_tokenizer_named
from atom_lite.text.special_tokens import frame_texts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from atom_lite.models.gguf_file import GgufValue

SPACE_MARK = "\u2581"  # how SentencePiece vocabularies write a space

# tokenizer.ggml.token_type
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4  # 5 is unused, 6 a byte
_WHOLE_KINDS = (_UNKNOWN, _CONTROL, _USER_DEFINED)


def build_tokenizer(metadata: Mapping[str, GgufValue]) -> Tokenizer:
    """The tokenizer that a GGUF file's metadata describes.

    Raises:
        ConfigError: when the file has no vocabulary, or one of a kind that is not built here.
    """
    vocabulary = _Vocabulary(metadata)
    if vocabulary.model == "gpt2":
        return _byte_level(vocabulary)
    if vocabulary.model == "llama":
        return _sentencepiece(vocabulary)
    raise ConfigError(
        f"the GGUF file's tokenizer model {vocabulary.model!r} is not supported "
        "(known: gpt2, llama); give the model's tokenizer.json with --tokenizer"
    )


def special_tokens(metadata: Mapping[str, GgufValue]) -> dict[str, str]:
    """The named special tokens of the file: bos_token, eos_token, unk_token, pad_token."""
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    vocabulary = _Vocabulary(metadata)
    found = {name: vocabulary.named_token(key) for name, key in names.items()}
    return {name: token for name, token in found.items() if token is not None}


class _Vocabulary:
    """Typed access to the `tokenizer.ggml.*` keys."""

    def __init__(self, metadata: Mapping[str, GgufValue]) -> None:
        self._metadata = metadata
        self.model = str(self._get("model", ""))
        self.tokens = cast("list[str]", self._get("tokens", []))
        if not self.tokens:
            raise ConfigError("the GGUF file has no tokenizer; give one with --tokenizer")
        types = cast("list[int]", self._get("token_type", []))
        self.types = types or [_NORMAL] * len(self.tokens)
        if len(self.types) != len(self.tokens):
            raise ConfigError(
                f"the GGUF file has {len(self.tokens)} tokens but {len(self.types)} token types"
            )

    def _get(self, key: str, default: GgufValue | None) -> GgufValue | None:
        return self._metadata.get(f"tokenizer.ggml.{key}", default)

    @property
    def pre(self) -> str:
        return str(self._get("pre", "default"))

    @property
    def merges(self) -> list[tuple[str, str]]:
        halves = (merge.partition(" ") for merge in cast("list[str]", self._get("merges", [])))
        return [(left, right) for left, _, right in halves]

    @property
    def scores(self) -> list[float]:
        return cast("list[float]", self._get("scores", []))

    def flag(self, key: str, default: bool) -> bool:
        return bool(self._get(key, default))

    def named_token(self, role: str) -> str | None:
        token_id = self._get(f"{role}_token_id", None)
        if not isinstance(token_id, int) or not 0 <= token_id < len(self.tokens):
            return None
        return self.tokens[token_id]

    def of_type(self, *types: int) -> Iterator[str]:
        return (token for token, kind in zip(self.tokens, self.types, strict=True) if kind in types)


# ---------------------------------------------------------------- byte-level BPE


def _byte_level(vocabulary: _Vocabulary) -> Tokenizer:
    pre = pre_tokenizer_named(vocabulary.pre)
    ids = {
        _byte_spelling(token, kind): index
        for index, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True))
    }
    tokenizer = Tokenizer(
        models.BPE(ids, _known_merges(vocabulary.merges, ids), ignore_merges=pre.ignore_merges)
    )
    if pre.normalize_nfc:
        tokenizer.normalizer = normalizers.NFC()
    steps: list[pre_tokenizers.PreTokenizer] = [
        pre_tokenizers.Split(Regex(split), behavior="isolated") for split in pre.splits
    ]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    _add_whole_tokens(tokenizer, vocabulary)
    _frame(tokenizer, vocabulary, adds_bos=pre.adds_bos)
    return tokenizer


def _byte_spelling(token: str, kind: int) -> str:
    """A token as the model's vocabulary writes it; whole tokens stay the plain text they match."""
    if kind in _WHOLE_KINDS or BYTE_OF_LETTER.keys() >= set(token):
        return token
    return spell(token.encode())


def _known_merges(merges: list[tuple[str, str]], ids: Mapping[str, int]) -> list[tuple[str, str]]:
    for left, right in merges:
        if left not in ids or right not in ids or left + right not in ids:
            raise ConfigError(
                f"the GGUF file merges {left!r} and {right!r}, which its vocabulary lacks"
            )
    return merges


# ---------------------------------------------------------------- SentencePiece-style BPE


def _sentencepiece(vocabulary: _Vocabulary) -> Tokenizer:
    ids = {token: index for index, token in enumerate(vocabulary.tokens)}
    if len(vocabulary.scores) != len(vocabulary.tokens):
        raise ConfigError(
            f"the GGUF file has {len(vocabulary.tokens)} tokens but {len(vocabulary.scores)} scores"
        )
    unknown = vocabulary.named_token("unknown") or next(vocabulary.of_type(_UNKNOWN), None)
    tokenizer = Tokenizer(
        models.BPE(
            ids,
            merges_from_scores(vocabulary),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefix = vocabulary.flag("add_space_prefix", True)
    respell: list[normalizers.Normalizer] = [normalizers.Replace(" ", SPACE_MARK)]
    undo: list[decoders.Decoder] = [
        decoders.Replace(SPACE_MARK, " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
    ]
    if prefix:
        respell.insert(0, normalizers.Prepend(SPACE_MARK))
        undo.append(decoders.Strip(" ", 1, 0))
    tokenizer.normalizer = normalizers.Sequence(respell)
    tokenizer.decoder = decoders.Sequence(undo)
    _add_whole_tokens(tokenizer, vocabulary)
    _frame(tokenizer, vocabulary, adds_bos=True)
    return tokenizer


def merges_from_scores(vocabulary: _Vocabulary) -> list[tuple[str, str]]:
    """The merges that a scored vocabulary implies: best score first.

    SentencePiece joins the neighbours whose joint token has the highest score. As ranks: every way
    to cut a token into two tokens, ordered by the token's score, then the shorter left part first.
    """
    mergeable = {
        token: score
        for token, kind, score in zip(
            vocabulary.tokens, vocabulary.types, vocabulary.scores, strict=True
        )
        if kind in (_NORMAL, _USER_DEFINED)
    }
    by_score: dict[float, list[tuple[str, str]]] = defaultdict(list)
    for token, score in mergeable.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in mergeable and right in mergeable:
                by_score[score].append((left, right))
    return [pair for score in sorted(by_score, reverse=True) for pair in by_score[score]]


# ---------------------------------------------------------------- both


def _add_whole_tokens(tokenizer: Tokenizer, vocabulary: _Vocabulary) -> None:
    """Tokens that are never cut: control tokens (special) and user-defined ones (plain text)."""
    for special, kinds in ((True, (_CONTROL, _UNKNOWN)), (False, (_USER_DEFINED,))):
        add = tokenizer.add_special_tokens if special else tokenizer.add_tokens
        add([AddedToken(t, normalized=False, special=special) for t in vocabulary.of_type(*kinds)])


def _frame(tokenizer: Tokenizer, vocabulary: _Vocabulary, *, adds_bos: bool) -> None:
    frame_texts(
        tokenizer,
        bos=vocabulary.named_token("bos") if vocabulary.flag("add_bos_token", adds_bos) else None,
        eos=vocabulary.named_token("eos") if vocabulary.flag("add_eos_token", False) else None,
    )
