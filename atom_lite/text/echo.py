"""A prompt as an answer repeats it: its text, and where each of its tokens begins in it.

The text is what the client sent, where it sent text; the tokens may hold more (a BOS that the
tokenizer adds) or spell it otherwise (a vocabulary that puts a space before a text). Runs in the
frontend.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from atom_lite.text.detokenizer import IncrementalDetokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atom_lite.text.tokenizer import Tokenizer


class Echo(NamedTuple):
    """A prompt's text and the character that each token begins at."""

    text: str
    starts: list[int]


def echo_of(tokenizer: Tokenizer, token_ids: Sequence[int], given: str | None) -> Echo:
    """The echo of a prompt.

    Args:
        tokenizer: of the model.
        token_ids: the prompt's.
        given: the prompt as the client wrote it; None where token ids were sent, and then control
            tokens are shown by name, as in vLLM.
    """
    detokenizer = IncrementalDetokenizer(tokenizer, (), skip_special_tokens=False)
    parts, starts, length = [], [], 0
    for token_id in token_ids:
        starts.append(length)
        part = detokenizer.push((token_id,))
        parts.append(part)
        length += len(part)
    spelled = "".join(parts) + detokenizer.finish()
    if given is None or given == spelled:
        return Echo(spelled, starts)
    before = len(spelled) - len(given) if spelled.endswith(given) else 0
    return Echo(given, [min(max(start - before, 0), len(given)) for start in starts])
