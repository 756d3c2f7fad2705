"""Calls as a list of Python calls: `[f(city="Paris", days=3), g()]`, of Llama 3.2 and 4.

Nothing but the text itself tells a call from an answer that begins with a bracket, so it is one
only at the beginning of the answer, and if it names a declared function. An argument comes out when
its value is complete; values are literals, nothing is run.
"""

from __future__ import annotations

import ast
import json
import re
from typing import TYPE_CHECKING, Any

from atom_lite.text.tool_calls.parser import NAME_LETTERS, ToolCallParser
from atom_lite.text.tool_calls.reader import Marks

if TYPE_CHECKING:
    from atom_lite.text.tool_calls.reader import Steps

_START, _END = "<|python_start|>", "<|python_end|>"
_MARKS = Marks(_START, _END)
_JSON_WORDS = {"true": True, "false": False, "null": None}
# What a literal that is too deep or no literal raises.
_NO_LITERAL = (ValueError, SyntaxError, TypeError, MemoryError, RecursionError)
_CLOSED_BY = {"(": ")", "[": "]", "{": "}"}


class PythonicParser(ToolCallParser):
    """One list of calls, then content."""

    marks = (_START, _END)

    def read(self) -> Steps[None]:
        """A list of calls, if the answer begins with one."""
        reader = self.reader
        reader.keep()
        yield from reader.skip_space()
        if (yield from reader.take(_START)):
            reader.keep()
            yield from reader.skip_space()
        with reader.bounded(_MARKS):
            if (yield from reader.take("[")):
                while (yield from self._read_call()):
                    pass
        if not self.num_calls:
            text = reader.kept()
            if not reader.at_cut or not text.strip().startswith("["):
                self.content(text)
        while (yield from reader.copy_until(_MARKS, self.content)) is not None:
            pass

    def _read_call(self) -> Steps[bool]:
        """Read a call; False where the list ends."""
        reader = self.reader
        yield from reader.skip_space(",")
        if self.num_calls and (yield from reader.take("]")):
            return False
        name = yield from reader.take_run(NAME_LETTERS)
        if name not in self.functions or not (yield from reader.take("(")):
            if self.num_calls:
                yield from reader.copy_rest(self.ignore)
            return False
        self.begin_call(name)
        separator = "{"
        while (argument := (yield from self._read_argument())) is not None:
            self.arguments(f"{separator}{argument}")
            separator = ", "
        complete = yield from reader.take(")")
        if not complete and reader.at_cut:
            self.unfinished = True
            return False
        self.arguments("{}" if separator == "{" else "}")
        if not complete:
            yield from reader.copy_rest(self.ignore)
        return complete

    def _read_argument(self) -> Steps[str | None]:
        """Read `name=value`; the member of a JSON object that it is, None if there is none."""
        reader = self.reader
        yield from reader.skip_space(",")
        name = yield from reader.take_run(NAME_LETTERS)
        yield from reader.skip_space()
        if not name or not (yield from reader.take("=")):
            return None
        source = yield from self._read_value()
        if source is None:
            return None
        try:
            value = json.dumps(_literal(source), ensure_ascii=False, allow_nan=False)
        except _NO_LITERAL:
            return None
        return f"{json.dumps(name)}: {value}"

    def _read_value(self) -> Steps[str | None]:
        """The source of a value, up to the comma or bracket after it; None if that never comes."""
        reader, extent = self.reader, _ValueExtent()
        source: list[str] = []
        while letter := (yield from reader.peek()):
            run = yield from reader.take_run(extent.run)
            if not run:
                if not extent.take(letter):
                    return "".join(source).strip()
                yield from reader.take(letter)
            source.append(run or letter)
        return None


class _ValueExtent:
    """Finds the end of a Python value: the first comma or bracket outside of its own."""

    _PLAIN = re.compile(r"[^\"'\\()\[\]{},]+")

    def __init__(self) -> None:
        self._closers: list[str] = []
        self._quote = ""
        self._escaped = False

    @property
    def run(self) -> re.Pattern[str]:
        """Letters that decide nothing, unless one of them is escaped."""
        return _NOTHING if self._escaped else self._PLAIN

    def take(self, letter: str) -> bool:
        """A letter that may decide something; False if it comes after the value."""
        if self._quote:
            self._in_string(letter)
        elif letter in "\"'":
            self._quote = letter
        elif letter in _CLOSED_BY:
            self._closers.append(_CLOSED_BY[letter])
        elif self._closers and letter == self._closers[-1]:
            self._closers.pop()
        elif not self._closers and letter in ",)]}":
            return False
        return True

    def _in_string(self, letter: str) -> None:
        if self._escaped:
            self._escaped = False
        elif letter == "\\":
            self._escaped = True
        elif letter == self._quote:
            self._quote = ""


_NOTHING = re.compile(r"(?!)")


def _literal(source: str) -> Any:
    if source in _JSON_WORDS:
        return _JSON_WORDS[source]
    return ast.literal_eval(source)
