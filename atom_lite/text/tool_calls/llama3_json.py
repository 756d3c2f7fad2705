"""Calls as bare JSON: `{"name": "f", "parameters": {...}}; {...}`, of Llama 3.1 and later.

Nothing but the text itself tells a call from an answer in JSON, so it is one only at the beginning
of the answer or after `<|python_tag|>`, and if it names a declared function.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from atom_lite.text.tool_calls.call_object import CallObject
from atom_lite.text.tool_calls.parser import ToolCallParser
from atom_lite.text.tool_calls.reader import Marks

if TYPE_CHECKING:
    from atom_lite.text.tool_calls.reader import Steps

_TAG = "<|python_tag|>"
_MARKS = Marks(_TAG)


class Llama3JsonParser(ToolCallParser):
    """Several calls are separated by semicolons, or by nothing."""

    marks = (_TAG,)

    def read(self) -> Steps[None]:
        """Calls, then content, in which the tag may begin calls again."""
        yield from self._read_calls()
        while (yield from self.reader.copy_until(_MARKS, self.content)) is not None:
            yield from self._read_calls()

    def _read_calls(self) -> Steps[None]:
        reader = self.reader
        while True:
            reader.keep()
            yield from reader.skip_space(";" if self.num_calls else "")
            if (yield from reader.take(_TAG)):
                continue
            space = reader.kept()
            if not self.num_calls:
                self.content(space)
            if (yield from reader.peek()) != "{":
                return
            with reader.bounded(_MARKS):
                if not (yield from CallObject(self, declared_only=True).read()):
                    return
