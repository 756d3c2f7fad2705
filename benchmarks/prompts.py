"""Prompts of a wanted number of tokens, different for every request.

Each prompt is a random sequence of common English words, each one token in the usual BPE and
SentencePiece vocabularies, so that a server's prefix cache finds nothing to share (unless the
workload wants it to). Lengths are set by the server's own `/tokenize` where it has one, else by a
line fitted through the usage of two probe requests.

Pure except for the `count` callback; target.py provides it.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

# Keeps a model that may stop at an end-of-sequence token talking; sent in every prompt, so that
# servers that accept `ignore_eos` and those that do not get the same text.
INSTRUCTION = "\nNow write a very long story that uses all of these words, and never stop:"
MAX_CORRECTIONS = 4

WORDS = Path(__file__).with_name("words.txt").read_text(encoding="ascii").split()

CountTokens = Callable[[str], Awaitable[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class WordLine:
    """Prompt tokens as a line over the number of words: `overhead + per_word * words`."""

    per_word: float = 1.0
    overhead: float = 0.0

    @classmethod
    def through(cls, first: tuple[int, int], second: tuple[int, int]) -> WordLine:
        """Fit through two (words, tokens) points."""
        per_word = (second[1] - first[1]) / (second[0] - first[0])
        return cls(per_word=per_word, overhead=first[1] - per_word * first[0])

    def words_for(self, tokens: int) -> int:
        """How many words make a prompt of `tokens`; at least one."""
        return max(1, round((tokens - self.overhead) / self.per_word))


def random_words(rng: random.Random, count: int) -> str:
    """`count` words, joined by spaces."""
    return " ".join(rng.choices(WORDS, k=count))


class PromptMaker:
    """Makes the prompts of a run.

    Args:
        seed: same seed, same prompts.
        line: from words to tokens, the instruction included.
        count: exact token count of a prompt as the server will see it; None where not offered.
    """

    def __init__(self, seed: int, line: WordLine, count: CountTokens | None) -> None:
        self._seed = seed
        self._line = line
        self._count = count

    async def make(self, name: str, tokens: int, *, prefix: str = "") -> str:
        """A prompt of `tokens` tokens, on top of `prefix`.

        Args:
            name: distinguishes prompts; the same name gives the same prompt.
            tokens: wanted length, template and instruction included, prefix not.
            prefix: text to begin with.
        """
        rng = random.Random(f"{self._seed}/{name}")
        words = rng.choices(WORDS, k=self._line.words_for(tokens))
        if self._count is None or prefix:
            return self._text(prefix, words)
        for _ in range(MAX_CORRECTIONS):
            missing = tokens - await self._count(self._text(prefix, words))
            if missing > 0:
                words += rng.choices(WORDS, k=missing)
            elif missing < 0:
                del words[max(1, len(words) + missing) :]
            if missing == 0 or len(words) == 1:
                break
        return self._text(prefix, words)

    def prefix(self, name: str, tokens: int) -> str:
        """A text of about `tokens` tokens to share between prompts."""
        rng = random.Random(f"{self._seed}/{name}")
        return random_words(rng, max(1, round(tokens / self._line.per_word))) + " "

    @staticmethod
    def _text(prefix: str, words: list[str]) -> str:
        return prefix + " ".join(words) + INSTRUCTION
