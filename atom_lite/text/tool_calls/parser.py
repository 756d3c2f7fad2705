"""The one interface of tool-call parsers, and what they have in common.

    feed(text) -> parts, any number of times; finish(cut=...) -> the last parts

What every parser promises, for any text:

- Nothing that a format is written with is content: marks, and white space between calls.
- The arguments of a call are a JSON object. Where a model wrote a broken one, what it wrote before
  the break is kept and closed. Where the text was cut, by max_tokens or a stop string, they stay
  as they came, so that nobody takes half a path for a whole one; `unfinished` says so.
- A call is told as soon as the name of its function is known. What turns out to be none before is
  content, without its marks.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, TypeAlias

from atom_lite.text.tool_calls.json_scanner import JsonScanner
from atom_lite.text.tool_calls.parts import Part
from atom_lite.text.tool_calls.reader import PartsReader, Steps

# The functions that a request declares, by name, with the JSON schemas of their parameters.
Functions: TypeAlias = Mapping[str, Mapping[str, Any]]

NAME_LETTERS = re.compile(r"[A-Za-z0-9_.\-/:]+")


class ToolCallParser(ABC):
    """Parses one answer."""

    marks: ClassVar[tuple[str, ...]] = ()  # of these, special tokens must be kept in the text

    def __init__(self, functions: Functions) -> None:
        self.functions = functions
        self.reader = PartsReader()
        self.num_calls = 0
        self.unfinished = False  # the text was cut inside the last call
        self._parts: list[Part] = []
        self._space = ""  # after content; shown only if more content follows
        self._content_began = False  # since the last call
        self.broken = False  # the last call makes no sense any more
        self._steps = self._read_all()

    @abstractmethod
    def read(self) -> Steps[None]:
        """Read the whole text, calling `content`, `begin_call` and `arguments`."""

    def feed(self, text: str) -> list[Part]:
        """Take the next piece of the answer."""
        self.reader.add(text)
        return self._advance()

    def finish(self, *, cut: bool) -> list[Part]:
        """The answer is over; `cut` if not by the model's own will."""
        self.reader.end(cut=cut)
        return self._advance()

    def _advance(self) -> list[Part]:
        next(self._steps, None)
        parts, self._parts = self._parts, []
        return parts

    def _read_all(self) -> Steps[None]:
        yield from self.read()
        yield from self.reader.copy_rest(self.content)
        if self._space and not (self.num_calls and not self._content_began):
            self._parts.append(Part("content", self._space))

    # ------------------------------------------------------------ what was read

    def content(self, text: str) -> None:
        """Text that is no call. White space beside calls is left out."""
        text = self._space + text
        if self.num_calls and not self._content_began:
            text = text.lstrip()
        shown = text.rstrip()
        self._space = text[len(shown) :]
        if shown:
            self._content_began = True
            self._parts.append(Part("content", shown))

    def ignore(self, text: str) -> None:  # noqa: B027  # it does all that it should
        """Text that says nothing."""

    def begin_call(self, name: str) -> None:
        """The name of a function that is called."""
        self.reader.forget()
        self._space, self._content_began = "", False
        self._parts.append(Part("call", name, self.num_calls))
        self.num_calls += 1

    def arguments(self, text: str) -> None:
        """A piece of the arguments of the last call."""
        self._parts.append(Part("arguments", text, self.num_calls - 1))

    # ------------------------------------------------------------ what several formats share

    def read_arguments(self) -> Steps[None]:
        """Read the JSON object that comes next, as the arguments of the call."""
        first = yield from self.reader.peek()
        if first != "{":
            text = yield from self.collected_arguments()
            if text is None:
                self.end_without_arguments()
            else:
                self.arguments(text)
            return
        scanner = JsonScanner()
        yield from self.reader.scan(scanner, self.arguments)
        if not scanner.done and self.reader.at_cut:
            self.unfinished = True
            return
        self.broken = not scanner.done
        if rest := scanner.close():
            self.arguments(rest)

    def end_without_arguments(self) -> None:
        """A call that has none, unless they would have come."""
        if self.reader.at_cut:
            self.unfinished = True
        else:
            self.arguments("{}")

    def collected_arguments(self) -> Steps[str | None]:
        """Arguments as one JSON object; also if it was written inside a string. None if cut."""
        scanner = JsonScanner()
        pieces: list[str] = []
        yield from self.reader.scan(scanner, pieces.append)
        if not scanner.done and self.reader.at_cut:
            return None
        text = "".join([*pieces, scanner.close()])
        if text.startswith('"'):
            text = _object_in(str(json.loads(text)).strip())
        return text if text.startswith("{") else "{}"


def _object_in(text: str) -> str:
    """The JSON object that a text begins with, closed if need be."""
    scanner = JsonScanner()
    out, _ = scanner.push(text)
    return out + scanner.close()
