"""What an assistant's message is made of, piece by piece."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Part(NamedTuple):
    """A piece of a message; pieces of one kind and call are joined by their text.

    Attributes:
        kind: "call" begins a call, "arguments" are its own from then on.
        text: of a call its function's name; of arguments a piece of a JSON object.
        call: its number in the message, for "call" and "arguments".
    """

    kind: Literal["reasoning", "content", "call", "arguments"]
    text: str
    call: int = 0


def joined(parts: list[Part]) -> list[Part]:
    """The same message in as few parts as its order allows."""
    result: list[Part] = []
    for part in parts:
        last = result[-1] if result else None
        if last is not None and part.kind != "call" and _continues(last, part):
            result[-1] = last._replace(text=last.text + part.text)
        else:
            result.append(part)
    return result


def _continues(last: Part, part: Part) -> bool:
    return (last.kind, last.call) == (part.kind, part.call)
