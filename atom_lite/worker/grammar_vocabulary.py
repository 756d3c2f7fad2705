"""What the two grammar libraries need to know of a vocabulary, made of the bytes of its tokens.

The compiler process and the last stage each make their own from the same pieces: a grammar that one
compiles fits the masks of the other. A token without bytes is no text (a control token, padding):
no grammar ever allows it, but for EOS where the grammar may end.

Each library is imported in its own function: a process that needs one does not pay for the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llguidance import LLTokenizer
    from xgrammar.tokenizer_info import TokenizerInfo


def xgrammar_vocabulary(pieces: Sequence[bytes], eos_token_ids: Sequence[int]) -> TokenizerInfo:
    """The vocabulary as xgrammar wants it.

    Args:
        pieces: the bytes of each token, in the order of their ids; as many as the model has logits.
        eos_token_ids: tokens that end the output; their own bytes, if any, are not text.
    """
    from xgrammar.tokenizer_info import TokenizerInfo, VocabType

    # xgrammar takes the bytes of a stop token for text like any other's
    eos = set(eos_token_ids)
    return TokenizerInfo(
        [b"" if token_id in eos else piece for token_id, piece in enumerate(pieces)],
        vocab_type=VocabType.RAW,
        vocab_size=len(pieces),
        stop_token_ids=list(eos_token_ids),
    )


def guidance_vocabulary(pieces: Sequence[bytes], eos_token_ids: Sequence[int]) -> LLTokenizer:
    """The same as llguidance wants it.

    Grammars for it must say `%llguidance {"no_forcing": true}`, as the compiler's do: else it asks
    the tokenizer how it would write text that the grammar forces, and there is none here.
    """
    from llguidance import LLTokenizer, TokenizerWrapper

    wrapper = TokenizerWrapper(_Pieces(pieces, eos_token_ids))
    return LLTokenizer(wrapper, n_vocab=len(pieces), eos_token=list(eos_token_ids))


class _Pieces:
    """The duck type that llguidance reads a vocabulary from."""

    def __init__(self, pieces: Sequence[bytes], eos_token_ids: Sequence[int]) -> None:
        eos = set(eos_token_ids)
        self.eos_token_id = eos_token_ids[0]
        self.bos_token_id = None
        self.special_token_ids = [
            token_id for token_id, piece in enumerate(pieces) if not piece or token_id in eos
        ]
        special = set(self.special_token_ids)
        # 0xff, which no UTF-8 text has, marks a token that is a name and not text
        self.tokens = [
            b"\xff<%d>" % token_id if token_id in special else piece
            for token_id, piece in enumerate(pieces)
        ]

    def __call__(self, _text: bytes) -> list[int]:
        """Token ids of a text; asked for forced text only."""
        return []
