"""Where a model's thoughts end and its answer begins.

A model that reasons writes its thoughts between two marks before the answer. Whether it is thinking
when its output begins is the prompt's to say: templates open the thoughts for the model, or write
empty ones where a request does without. Only where the prompt says neither, the output is asked:
it may begin with the opening mark itself.

Line breaks next to the marks belong to them. Like everything in this package it makes no difference
how the text is cut into pieces. Runs in the frontend.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

_LINE_BREAKS = "\r\n"


class ReasoningFormat(NamedTuple):
    """How a family of models marks its thoughts.

    Attributes:
        start: opens them.
        end: closes them.
        thinks_unasked: an output that begins with neither mark is thought.
    """

    start: str
    end: str
    thinks_unasked: bool = False

    @property
    def marks(self) -> tuple[str, str]:
        """Both; of these, special tokens must be kept in the text."""
        return (self.start, self.end)


_THINK = ReasoningFormat("<think>", "</think>")
_THINK_UNASKED = _THINK._replace(thinks_unasked=True)

# The names of `--reasoning-parser`: vLLM's.
REASONING_PARSERS: Mapping[str, ReasoningFormat] = {
    "deepseek_r1": _THINK_UNASKED,
    "deepseek_v3": _THINK,
    "qwen3": _THINK,
    "glm45": _THINK,
    "holo2": _THINK,
    "minimax_m2": _THINK_UNASKED,
    "mistral": ReasoningFormat("[THINK]", "[/THINK]"),
    "seed_oss": ReasoningFormat("<seed:think>", "</seed:think>"),
    "granite": ReasoningFormat("Here is my thought process:", "Here is my response:"),
}


def recognise(template: str) -> str | None:
    """The name of the format that a chat template knows, if it knows one."""
    for name in ("qwen3", "mistral", "seed_oss"):
        if REASONING_PARSERS[name].end in template:
            return name
    return None


class Opening(Enum):
    """What a prompt says of the output's beginning."""

    THOUGHT = auto()
    ANSWER = auto()
    EITHER = auto()  # thought if it begins with the mark


def opening_of(form: ReasoningFormat, prompt: str, *, may_think: bool = True) -> Opening:
    """Read it from the end of a prompt.

    Args:
        form: of the model.
        prompt: as text, up to where the output begins.
        may_think: False where the request asks for no thoughts.
    """
    end = prompt.rstrip()
    if end.endswith(form.start):
        return Opening.THOUGHT
    if end.endswith(form.end):
        return Opening.ANSWER
    return Opening.THOUGHT if form.thinks_unasked and may_think else Opening.EITHER


class ReasoningSplitter:
    """Takes the text of one output apart."""

    def __init__(self, form: ReasoningFormat, opening: Opening) -> None:
        self._form = form
        self._begins = opening is not Opening.ANSWER  # the opening mark may still come
        self.thinking = opening is Opening.THOUGHT
        self._held = ""
        self._at_edge = True  # line breaks that come now belong to a mark
        self._breaks = ""  # line breaks of a thought that may be its last

    @property
    def num_held_chars(self) -> int:
        """Letters that are neither thought nor answer yet."""
        return len(self._held) + len(self._breaks)

    def push(self, text: str) -> tuple[str, str]:
        """Take text; returns the new thought and the new answer, in that order."""
        text = self._held + text
        self._held = ""
        if self._begins and not self._take_start(text):
            return "", ""
        if self._begins:
            text = self._after_start(text)
        if not self.thinking:
            return "", self._answer(text)
        return self._split(text)

    def finish(self, *, cut: bool) -> tuple[str, str]:
        """The output is over: what was held. The beginning of a mark, if cut, is left out."""
        held, self._held = self._held, ""
        self._begins = False
        if cut or not held:
            return "", ""
        return (self._thought(held), "") if self.thinking else ("", held)

    def _take_start(self, text: str) -> bool:
        """Whether it is known if the opening mark comes first; else the text is held."""
        begun = text.lstrip()
        if len(begun) < len(self._form.start) and self._form.start.startswith(begun):
            self._held = text
            return False
        return True

    def _after_start(self, text: str) -> str:
        self._begins = False
        begun = text.lstrip()
        if not begun.startswith(self._form.start):
            self._at_edge = self.thinking
            return text
        self.thinking = True
        return begun[len(self._form.start) :]

    def _split(self, text: str) -> tuple[str, str]:
        mark = self._form.end
        thought, found, rest = text.partition(mark)
        if found:
            shown = self._thought(thought)
            self.thinking, self._at_edge, self._breaks = False, True, ""
            return shown, self._answer(rest)
        at = text.rfind(mark[0])
        if at >= 0 and mark.startswith(text[at:]):
            thought, self._held = text[:at], text[at:]
        return self._thought(thought), ""

    def _thought(self, text: str) -> str:
        """A piece of a thought, without the line breaks at both its ends."""
        text = self._breaks + text
        self._breaks = ""
        if self._at_edge:
            text = text.lstrip(_LINE_BREAKS)
            self._at_edge = not text
        shown = text.rstrip(_LINE_BREAKS)
        self._breaks = text[len(shown) :]
        return shown

    def _answer(self, text: str) -> str:
        if self._at_edge:
            text = text.lstrip(_LINE_BREAKS)
            self._at_edge = not text
        return text
