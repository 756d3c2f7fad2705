r"""Calls between DeepSeek's own marks, of V3, R1 and V3.1.

    BEGIN function SEP name \n ```json \n {...} \n ``` END       V3 and R1
    BEGIN name SEP {...} END                                     V3.1

all of it between marks for the whole list of calls.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from atom_lite.text.tool_calls.parser import ToolCallParser
from atom_lite.text.tool_calls.reader import Marks

if TYPE_CHECKING:
    from atom_lite.text.tool_calls.reader import Steps


def _mark(words: str) -> str:
    """With the wide bar and the block that stands for a space."""
    return f"<\uff5c{words}\uff5c>".replace(" ", "\u2581")


CALLS_BEGIN = _mark("tool calls begin")
_CALLS_END = _mark("tool calls end")
_BEGIN, _END, _SEP = _mark("tool call begin"), _mark("tool call end"), _mark("tool sep")
_MARKS = Marks(CALLS_BEGIN, _CALLS_END, _BEGIN, _END, _SEP)
_LINE = re.compile(r"[^\r\n{]+")


class DeepSeekV3Parser(ToolCallParser):
    """Takes any function's name: the marks leave no doubt."""

    marks = _MARKS.words

    def read(self) -> Steps[None]:
        """Content, then calls between marks."""
        mark = yield from self.reader.copy_until(_MARKS, self.content)
        while mark is not None:
            if mark == _BEGIN:
                mark = yield from self._read_call()
            else:
                mark = yield from self.reader.copy_until(_MARKS, self.content)

    def _read_call(self) -> Steps[str | None]:
        """Read a call after its first mark, and the mark after it."""
        reader = self.reader
        header: list[str] = []
        mark = yield from reader.copy_until(_MARKS, header.append)
        if mark != _SEP:
            return mark
        name = "".join(header).strip()
        with reader.bounded(_MARKS):
            yield from reader.skip_space()
            if (yield from reader.peek()) != "{":
                line = yield from reader.take_run(_LINE)
                name = line.strip()
                yield from reader.skip_space("`")
                yield from reader.take("json")
                yield from reader.skip_space()
            if name and not reader.at_cut:
                self.begin_call(name)
                yield from self.read_arguments()
        return (yield from reader.copy_until(_MARKS, self.ignore))
