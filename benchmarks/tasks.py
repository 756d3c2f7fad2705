"""Questions with one right answer, made here from a seed: copying, short sums, retrieval.

Few-shot prompts of plain text, so that any language model can be asked; answered greedily, up to
the end of the line, and right only if its first sentence is exactly the answer. The difficulties
are such that SmolLM2-135M-Instruct gets 40 to 80 % over all: a score at either end would not move
when something breaks a little.

    copying     125 tokens: a row of digits, to be repeated
    sums         40 tokens: two numbers of one digit
    retrieval   2K to 6K tokens: where four people live, told within Python's documentation; a dozen
                questions share one text, as a prefix cache would have it

Pure: the same seed gives the same items under the same version of Python.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.reference_text import prose_paragraphs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

KINDS = ("copying", "sums", "retrieval")

COPY_DIGITS = 9
COPY_EXAMPLES = 2
SUM_EXAMPLES = 4
CHARACTERS_PER_TOKEN = 4
FACTS = 4
_NAMES = (
    *("Anna", "Tom", "Maria", "Peter", "Laura", "David", "Julia", "Simon"),
    *("Clara", "Robert", "Emma", "Victor", "Alice", "Henry", "Sophie", "Martin"),
)
_CITIES = (
    *("Paris", "London", "Rome", "Berlin", "Madrid", "Vienna", "Athens", "Dublin"),
    *("Prague", "Warsaw", "Oslo", "Boston", "Chicago", "Tokyo", "Moscow", "Cairo"),
)
_QUESTIONS = (
    "\n\nQuestion: Where does {name} live?\nAnswer: {name} lives in",
    "\n\nThe home of {name} is",
    "\n\nAs told above, {name} lives in",
)


@dataclass(frozen=True, slots=True)
class Item:
    """One question; its prompt is `context + question`.

    Attributes:
        kind: one of KINDS.
        context: what the items of a group share.
        question: ends where the answer begins.
        answer: what must come next.
        max_tokens: enough for the answer and the end of its line.
        group: number of the context; -1 for an item without.
    """

    kind: str
    context: str
    question: str
    answer: str
    max_tokens: int
    group: int = -1

    def is_right(self, reply: str) -> bool:
        """Whether the first sentence of a reply's first line is the answer."""
        return reply.strip().partition("\n")[0].partition(".")[0].strip() == self.answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """How many items of each kind; retrieval as the context lengths, in tokens, roughly."""

    copying: int = 160
    sums: int = 244
    contexts: tuple[int, ...] = (2000, 2000, 2000, 3000, 3000, 4000, 4000, 6000)


QUICK_MIX = Mix(copying=6, sums=18, contexts=(800,))


def make_items(mix: Mix, seed: int) -> list[Item]:
    """All items: copying, sums, then retrieval by group."""
    items = [_copying(random.Random(f"{seed}/copying/{i}")) for i in range(mix.copying)]
    items += [_sum(random.Random(f"{seed}/sums/{i}")) for i in range(mix.sums)]
    paragraphs = prose_paragraphs()
    for group, num_tokens in enumerate(mix.contexts):
        rng = random.Random(f"{seed}/retrieval/{group}")
        items += list(_retrieval(rng, paragraphs, num_tokens, group))
    return items


def _copying(rng: random.Random) -> Item:
    rows = [" ".join(rng.choices("0123456789", k=COPY_DIGITS)) for _ in range(COPY_EXAMPLES + 1)]
    examples = "".join(f"List: {row}\nCopy: {row}\n\n" for row in rows[:-1])
    question = f"Repeat each list.\n\n{examples}List: {rows[-1]}\nCopy:"
    return Item("copying", "", question, rows[-1], max_tokens=2 * COPY_DIGITS + 4)


def _sum(rng: random.Random) -> Item:
    pairs = [(rng.randrange(1, 10), rng.randrange(2, 10)) for _ in range(SUM_EXAMPLES + 1)]
    examples = "".join(f"{a} + {b} = {a + b}\n" for a, b in pairs[:-1])
    a, b = pairs[-1]
    return Item("sums", "", f"{examples}{a} + {b} =", str(a + b), max_tokens=5)


def _retrieval(
    rng: random.Random, paragraphs: Sequence[str], num_tokens: int, group: int
) -> Iterator[Item]:
    homes = dict(zip(rng.sample(_NAMES, FACTS), rng.sample(_CITIES, FACTS), strict=True))
    parts = []
    for name, city in homes.items():
        room = num_tokens * CHARACTERS_PER_TOKEN // FACTS
        while room > 0:
            parts.append(rng.choice(paragraphs))
            room -= len(parts[-1])
        parts.append(f"{name} lives in {city}. The home of {name} is {city}.")
    context = "\n".join(parts)
    for question in _QUESTIONS:
        for name, city in homes.items():
            text = question.format(name=name)
            yield Item("retrieval", context, text, city, max_tokens=5, group=group)
