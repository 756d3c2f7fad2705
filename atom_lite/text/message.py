"""From the text of one output to the parts of an assistant's message: thoughts, content, calls.

Takes what `OutputText` gives, in which thoughts are told apart already. Runs in the frontend, one
instance per choice of a chat answer that may have more than content.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from atom_lite.text.tool_calls.parts import Part

if TYPE_CHECKING:
    from atom_lite.text.output import TextDelta
    from atom_lite.text.tool_calls.parser import ToolCallParser


class MessageParser:
    """Parses one message.

    Args:
        tools: finds calls in the answer; None leaves it content.
        shows_thoughts: whether thoughts are parts of the message.
        only_first_call: leave out all calls but one.
        told_as_calls: whether calls are a reason of their own for the message's end.
    """

    def __init__(
        self,
        tools: ToolCallParser | None,
        *,
        shows_thoughts: bool = True,
        only_first_call: bool = False,
        told_as_calls: bool = True,
    ) -> None:
        self._tools = tools
        self._shows_thoughts = shows_thoughts
        self._only_first_call = only_first_call
        self._told_as_calls = told_as_calls

    @property
    def ends_with_calls(self) -> bool:
        """Whether, once the output has ended, it is for its calls, all of them complete."""
        if self._tools is None or not self._told_as_calls:
            return False
        return self._tools.num_calls > 0 and not self._tools.unfinished

    def feed(self, delta: TextDelta) -> list[Part]:
        """The parts that new text brings."""
        parts = self._thought(delta)
        if delta.text:
            parts += self._answer(delta.text)
        return parts

    def finish(self, *, cut: bool) -> list[Part]:
        """The last parts; `cut` if the output did not end by itself."""
        return [] if self._tools is None else self._shown(self._tools.finish(cut=cut))

    def _thought(self, delta: TextDelta) -> list[Part]:
        shown = delta.thought and self._shows_thoughts
        return [Part("reasoning", delta.thought)] if shown else []

    def _answer(self, text: str) -> list[Part]:
        if self._tools is None:
            return [Part("content", text)]
        return self._shown(self._tools.feed(text))

    def _shown(self, parts: list[Part]) -> list[Part]:
        return [part for part in parts if part.call == 0] if self._only_first_call else parts
