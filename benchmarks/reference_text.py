"""Text that every machine with Python has: the language reference (`pydoc_data.topics`).

Some 110 thousand tokens of English about Python. It differs a little between versions of Python, so
figures made from it name the version. Pure.
"""

from __future__ import annotations

import pydoc_data.topics
import re

_SHORTEST, _LONGEST = 80, 500  # characters of a paragraph that reads as prose


def reference_text() -> str:
    """The whole text, topics in alphabetical order."""
    topics: dict[str, str] = pydoc_data.topics.topics
    return "\n\n".join(topics[name] for name in sorted(topics))


def prose_paragraphs() -> list[str]:
    """Paragraphs of medium length without markup, to put something between facts."""
    paragraphs = (part.strip() for part in re.split(r"\n\s*\n", reference_text()))
    return [p for p in paragraphs if _SHORTEST < len(p) < _LONGEST and "**" not in p]
