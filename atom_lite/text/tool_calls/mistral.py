"""Calls after `[TOOL_CALLS]`, of Mistral's models.

A list of objects (`[{"name": "f", "arguments": {...}}]`), or since version 11 of their tokenizer
`f[ARGS]{...}` after a mark for each call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from atom_lite.text.tool_calls.call_object import CallObject
from atom_lite.text.tool_calls.parser import NAME_LETTERS, ToolCallParser
from atom_lite.text.tool_calls.reader import Marks

if TYPE_CHECKING:
    from atom_lite.text.tool_calls.reader import Steps

_CALLS, _ID, _ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
_MARKS = Marks(_CALLS, _ID, _ARGS)


class MistralParser(ToolCallParser):
    """Takes any function's name: the mark leaves no doubt."""

    marks = _MARKS.words

    def read(self) -> Steps[None]:
        """Content, then calls."""
        reader = self.reader
        while (mark := (yield from reader.copy_until(_MARKS, self.content))) is not None:
            if mark != _CALLS:
                continue
            name = ""
            with reader.bounded(_MARKS):
                yield from reader.skip_space()
                if (yield from reader.take("[")):
                    yield from self._read_list()
                elif (yield from reader.peek()) == "{":
                    yield from CallObject(self).read()
                else:
                    name = yield from reader.take_run(NAME_LETTERS)
            if name:
                yield from self._read_named(name)

    def _read_list(self) -> Steps[None]:
        reader = self.reader
        while True:
            yield from reader.skip_space(",")
            if (yield from reader.take("]")) or (yield from reader.peek()) != "{":
                return
            if not (yield from CallObject(self).read()):
                return

    def _read_named(self, name: str) -> Steps[None]:
        reader = self.reader
        if (yield from reader.take(_ID)):
            yield from reader.take_run(NAME_LETTERS)
        marked = yield from reader.take(_ARGS)
        with reader.bounded(_MARKS):
            yield from reader.skip_space()
            if marked or (yield from reader.peek()) == "{":
                self.begin_call(name)
                yield from self.read_arguments()
            elif not reader.at_cut:
                self.content(name)
