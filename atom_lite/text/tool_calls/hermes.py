"""Calls in tags: `<tool_call>{"name": "f", "arguments": {...}}</tool_call>`.

Of Hermes 2 Pro, Qwen 2.5 and 3, and what `tool_prompt.py` teaches models without a format of their
own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from atom_lite.text.tool_calls.call_object import CallObject
from atom_lite.text.tool_calls.parser import ToolCallParser
from atom_lite.text.tool_calls.reader import Marks

if TYPE_CHECKING:
    from atom_lite.text.tool_calls.reader import Steps

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_MARKS = Marks(_OPEN, _CLOSE)


class HermesParser(ToolCallParser):
    """Takes any function's name: a tag leaves no doubt."""

    marks = (_OPEN, _CLOSE)

    def read(self) -> Steps[None]:
        """Content with calls in tags; a tag that was not closed ends with the next one."""
        while (mark := (yield from self.reader.copy_until(_MARKS, self.content))) is not None:
            if mark == _OPEN:
                with self.reader.bounded(_MARKS):
                    if (yield from CallObject(self).read()):
                        yield from self.reader.skip_space("}],")
