"""The special tokens that a checkpoint's JSON files declare, applied to its tokenizer.

tokenizer.json should hold all of it, but checkpoints also say things in tokenizer_config.json that
their tokenizer.json lacks. The rules are those of transformers, so that the same ids come out.
Runs in the frontend at start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenizers import AddedToken, processors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tokenizers import Tokenizer

_NAMES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)


def named_special_tokens(declared: Mapping[str, Any]) -> dict[str, str]:
    """Special tokens by name; each is written as a string or as an object with its content."""
    found = {}
    for name in _NAMES:
        token = declared.get(name)
        content = token.get("content") if isinstance(token, dict) else token
        if isinstance(content, str):
            found[name] = content
    return found


def apply_config(backend: Tokenizer, config: Mapping[str, Any], named: Mapping[str, str]) -> None:
    """Bring a backend in line with tokenizer_config.json.

    Args:
        backend: changed in place.
        config: content of tokenizer_config.json.
        named: the named special tokens; those that are plain tokens so far become special.
    """
    _add_listed_tokens(backend, config.get("added_tokens_decoder", {}))
    added = {token.content for token in backend.get_added_tokens_decoder().values()}
    plain = [t for t in named.values() if t not in added and backend.token_to_id(t) is not None]
    backend.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in plain]
    )
    if "add_bos_token" in config or "add_eos_token" in config:
        frame_texts(
            backend,
            bos=named.get("bos_token") if config.get("add_bos_token") else None,
            eos=named.get("eos_token") if config.get("add_eos_token") else None,
        )


def _add_listed_tokens(backend: Tokenizer, listed: Mapping[str, Mapping[str, Any]]) -> None:
    """Add the tokens of `added_tokens_decoder` that the backend lacks, by id."""
    known = backend.get_added_tokens_decoder()
    flag_names = ("single_word", "lstrip", "rstrip", "normalized", "special")
    for key in sorted(listed, key=int):
        if int(key) not in known:
            flags = {name: bool(listed[key].get(name, False)) for name in flag_names}
            backend.add_tokens([AddedToken(listed[key]["content"], **flags)])


def frame_texts(backend: Tokenizer, *, bos: str | None, eos: str | None) -> None:
    """Set what `add_special_tokens=True` puts before and after a text: these tokens, or nothing."""
    pieces = [piece for piece in (bos, "$A", eos) if piece is not None]
    used = {token: backend.token_to_id(token) for token in (bos, eos) if token is not None}
    backend.post_processor = processors.TemplateProcessing(
        single=[f"{piece}:0" if piece == "$A" else piece for piece in pieces],
        special_tokens=list(used.items()),
    )
