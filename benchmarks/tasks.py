"""Questions with one right answer, made here from a seed: copying, short sums, retrieval.

Few-shot prompts of plain text, so that any language model can be asked; answered greedily, up to
the end of the line, and right only if the line is exactly the answer. The difficulties are such
that SmolLM2-135M-Instruct gets 40 to 80 % of each kind: a score at either end would not move when
something breaks a little.

    copying      150 tokens: a row of digits from a small alphabet, to be repeated
    sums          60 tokens: a two-digit and a one-digit number
    retrieval    2K to 6K tokens: codes of animals, strewn over text; many questions share one text,
                 as a prefix cache would have it

Pure: the same seed gives the same items on every machine.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from benchmarks.prompts import random_words

if TYPE_CHECKING:
    from collections.abc import Iterator

KINDS = ("copying", "sums", "retrieval")

COPY_ALPHABET = "0123456789"
COPY_DIGITS = 12
COPY_EXAMPLES = 2
SUM_EXAMPLES = 4
SUM_FIRST = (10, 60)
SUM_SECOND = (2, 10)
FACTS = 24
WORDS_PER_FACT = {2000: 60, 4000: 140, 6000: 220}
CUE_WORDS = 6
ANSWER_WORDS = 2

@dataclass(frozen=True, slots=True)
class Item:
    """One question; its prompt is `context + question`.

    Attributes:
        kind: one of KINDS.
        context: what items of one group share.
        question: ends where the answer begins.
        answer: what the rest of the line must be.
        group: number of the context, items of a group are asked together.
    """

    kind: str
    context: str
    question: str
    answer: str
    group: int = -1

    def is_right(self, reply: str) -> bool:
        """Whether the first line of a reply is the answer."""
        return reply.strip().split("\n")[0].strip().rstrip(".").rstrip() == self.answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """How many items of each kind; retrieval as questions for each context length in words."""

    copying: int = 180
    sums: int = 180
    contexts: tuple[int, ...] = (2000, 4000, 6000, 2000, 4000, 2000, 4000)
    questions: int = field(default=FACTS)


def make_items(mix: Mix, seed: int) -> list[Item]:
    """All items, grouped contexts last."""
    items = [_copying(random.Random(f"{seed}/copying/{i}")) for i in range(mix.copying)]
    items += [_sum(random.Random(f"{seed}/sums/{i}")) for i in range(mix.sums)]
    for group, length in enumerate(mix.contexts):
        rng = random.Random(f"{seed}/retrieval/{group}")
        items += list(_retrieval(rng, length, mix.questions, group))
    return items


def _copying(rng: random.Random) -> Item:
    def digits() -> str:
        return " ".join(rng.choices(COPY_ALPHABET, k=COPY_DIGITS))

    examples = "".join(f"List: {row}\nCopy: {row}\n\n" for row in (digits() for _ in range(COPY_EXAMPLES)))
    row = digits()
    return Item("copying", "", f"Repeat each list.\n\n{examples}List: {row}\nCopy:", row)


def _sum(rng: random.Random) -> Item:
    def pair() -> tuple[int, int]:
        return rng.randrange(*SUM_FIRST), rng.randrange(*SUM_SECOND)

    examples = "".join(f"{a} + {b} = {a + b}\n" for a, b in (pair() for _ in range(SUM_EXAMPLES)))
    a, b = pair()
    return Item("sums", "", f"{examples}{a} + {b} =", str(a + b))


def _retrieval(rng: random.Random, length: int, questions: int, group: int) -> Iterator[Item]:
    words = random_words(rng, length).split()
    last = length - CUE_WORDS - ANSWER_WORDS
    for place in rng.sample(range(last), questions):
        end = place + CUE_WORDS
        cue, answer = words[place:end], words[end : end + ANSWER_WORDS]
        yield Item("retrieval", " ".join(words), "\n\n" + " ".join(cue), " ".join(answer), group)
