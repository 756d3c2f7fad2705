"""Calls that a grammar forces: a model of any family writes plain JSON then.

`tool_choice` "required" is a list of `{"name": ..., "parameters": {...}}`, a named function its
arguments alone. Source: vLLM, whose forms these are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from atom_lite.text.tool_calls.call_object import CallObject
from atom_lite.text.tool_calls.parser import ToolCallParser

if TYPE_CHECKING:
    from atom_lite.text.tool_calls.parser import Functions
    from atom_lite.text.tool_calls.reader import Steps


class RequiredCallsParser(ToolCallParser):
    """A list of calls, and nothing else."""

    def read(self) -> Steps[None]:
        """Everything after the list, and what is no call, is content."""
        yield from self.reader.skip_space()
        if (yield from self.reader.take("[")):
            while True:
                yield from self.reader.skip_space(",")
                if (yield from self.reader.take("]")) or (yield from self.reader.peek()) != "{":
                    return
                if not (yield from CallObject(self).read()):
                    return


class NamedCallParser(ToolCallParser):
    """The arguments of one function.

    Args:
        functions: that the request declares.
        name: of the one that it names.
    """

    def __init__(self, functions: Functions, name: str) -> None:
        super().__init__(functions)
        self._name = name

    def read(self) -> Steps[None]:
        """The call begins with its arguments."""
        yield from self.reader.skip_space()
        if (yield from self.reader.peek()) == "{":
            self.begin_call(self._name)
            yield from self.read_arguments()
