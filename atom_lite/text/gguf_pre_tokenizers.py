r"""How the byte-level vocabularies of GGUF files cut text before their merges apply.

A GGUF file stores only a name in `tokenizer.ggml.pre`; what the name means is common knowledge of
the tools that read such files. Getting it wrong is quiet and costly: a converter that does not know
`smollm` cuts "  12" unlike the model's training did. So each name here stands for the splits of the
model's own published tokenizer, and a name that is not listed is refused.

Splits apply in order, each to the pieces that the ones before it left; a match becomes a piece of
its own. `ignore_merges`: a piece that is a whole token is taken as it is, without its merges.
This module runs in the frontend; it holds data only.

Source: llama.cpp's list of pre-tokenizers and the published tokenizer.json files of the models.
"""

from __future__ import annotations

from dataclasses import dataclass

from atom_lite.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class PreTokenizer:
    """What one name of `tokenizer.ggml.pre` stands for."""

    splits: tuple[str, ...]
    ignore_merges: bool = False
    normalize_nfc: bool = False
    adds_bos: bool = False  # when the file does not say it itself


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_SINGLE_DIGIT = r"\p{N}"
_CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3 = _CL100K % r"\p{N}{1,3}"
_QWEN2 = _CL100K % r"\p{N}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTION}"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTION}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
_FALCON = (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")
_UNNAMED = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")

_GPT2_PLAIN = PreTokenizer(splits=(_GPT2,))
_GPT2_DIGITS = PreTokenizer(splits=(_SINGLE_DIGIT, _GPT2))
_LLAMA3_LIKE = PreTokenizer(splits=(_LLAMA3,), ignore_merges=True, adds_bos=True)

_BY_NAME = {
    "default": PreTokenizer(splits=_UNNAMED),
    "gpt-2": _GPT2_PLAIN,
    "mpt": _GPT2_PLAIN,
    "olmo": _GPT2_PLAIN,
    "phi-2": _GPT2_PLAIN,
    "smollm": _GPT2_DIGITS,
    "starcoder": _GPT2_DIGITS,
    "refact": _GPT2_DIGITS,
    "command-r": _GPT2_DIGITS,
    "codeshell": _GPT2_DIGITS,
    "exaone": _GPT2_DIGITS,
    "llama3": _LLAMA3_LIKE,
    "llama-v3": _LLAMA3_LIKE,
    "llama-bpe": _LLAMA3_LIKE,
    "falcon3": _LLAMA3_LIKE,
    "dbrx": PreTokenizer(splits=(_LLAMA3,)),
    "smaug-bpe": PreTokenizer(splits=(_LLAMA3,)),
    "stablelm2": PreTokenizer(splits=(_QWEN2,)),
    "qwen2": PreTokenizer(splits=(_QWEN2,), normalize_nfc=True),
    "deepseek-r1-qwen": PreTokenizer(splits=(_QWEN2,)),
    "tekken": PreTokenizer(splits=(_TEKKEN,), ignore_merges=True, adds_bos=True),
    "gpt-4o": PreTokenizer(splits=(_GPT4O,)),
    "llama4": PreTokenizer(splits=(_GPT4O,)),
    "deepseek-v3": PreTokenizer(splits=_DEEPSEEK_V3),
    "falcon": PreTokenizer(splits=_FALCON),
}


def pre_tokenizer_named(name: str) -> PreTokenizer:
    """The pre-tokenizer that a GGUF file names.

    Raises:
        ConfigError: when the name is not known.
    """
    if name not in _BY_NAME:
        known = ", ".join(sorted(_BY_NAME))
        raise ConfigError(
            f"the GGUF file's pre-tokenizer {name!r} is not supported (known: {known}); "
            "give the model's tokenizer.json with --tokenizer"
        )
    return _BY_NAME[name]
