"""A text that arrives in parts, read by a program that is written as if all of it were there.

A parser is a generator: it asks the reader for what it needs (`yield from reader.take("{")`) and is
suspended there until enough text has come to decide. No answer depends on where the text was cut:
nothing is decided while more text could change it, and nothing waits longer than that.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from atom_lite.text.tool_calls.json_scanner import JsonScanner

T = TypeVar("T")
Steps: TypeAlias = Generator[None, None, T]


class Marks:
    """Words that end a stretch of text.

    None is part of another, and none holds its own first letter twice, so that a text ends with the
    beginning of a mark only from the last such letter on.
    """

    def __init__(self, *words: str) -> None:
        assert all(word[0] not in word[1:] for word in words)
        self.words = words
        self._first_letters = {word[0] for word in words}
        self._pattern = re.compile("|".join(map(re.escape, words)))

    def find(self, text: str) -> re.Match[str] | None:
        """The first mark in a text."""
        return self._pattern.search(text)

    def num_begun(self, text: str) -> int:
        """Letters at the end of a text that may become a mark."""
        for letter in self._first_letters:
            at = text.rfind(letter)
            if at >= 0 and any(word.startswith(text[at:]) for word in self.words):
                return len(text) - at
        return 0


class PartsReader:
    """Reads one text. `yield from` each method that returns `Steps`."""

    def __init__(self) -> None:
        self._text = ""  # that has come and is not read
        self._ended = False
        self._bounds: Marks | None = None
        self._kept: list[str] | None = None
        self.cut = False

    def add(self, text: str) -> None:
        """More text has come."""
        self._text += text

    def end(self, *, cut: bool) -> None:
        """No more text will come; `cut` says that there would have been more."""
        self._ended, self.cut = True, cut

    @contextmanager
    def bounded(self, marks: Marks) -> Iterator[None]:
        """Inside, the text seems to end before the first of some marks."""
        outer, self._bounds = self._bounds, marks
        try:
            yield
        finally:
            self._bounds = outer

    @property
    def at_cut(self) -> bool:
        """Whether the text ends here, and not by itself."""
        if not self.cut or self._window()[0]:
            return False
        return self._bounds is None or self._bounds.find(self._text) is None

    # ------------------------------------------------------------ giving back

    def keep(self) -> None:
        """Remember what is read from now on."""
        self._kept = []

    def forget(self) -> None:
        """What was read was right."""
        self._kept = None

    def kept(self) -> str:
        """What was read since `keep`; it is not remembered any longer."""
        text = "".join(self._kept or ())
        self._kept = None
        return text

    # ------------------------------------------------------------ reading

    def copy_until(self, marks: Marks, emit: Callable[[str], None]) -> Steps[str | None]:
        """Pass text on as it comes, up to the first mark, which is read and returned.

        None at the end of the text. The beginning of a mark there is passed on as well, unless the
        text was cut, when it was to become one.
        """
        with self.bounded(marks):
            yield from self._copy(emit)
        found = marks.find(self._text)
        if found is None:
            self._skip(len(self._text))
            return None
        self._skip(found.end())
        return found[0]

    def copy_rest(self, emit: Callable[[str], None]) -> Steps[None]:
        """Pass on all that comes."""
        yield from self._copy(emit)

    def _copy(self, emit: Callable[[str], None]) -> Steps[None]:
        while True:
            text, final = self._window()
            if text:
                self._skip(len(text))
                emit(text)
            if final:
                return
            yield

    def skip_space(self, others: str = "") -> Steps[None]:
        """Read white space, and some other letters."""
        letters = " \t\r\n" + others
        while True:
            text, final = self._window()
            rest = text.lstrip(letters)
            self._skip(len(text) - len(rest))
            if rest or final:
                return
            yield

    def peek(self) -> Steps[str]:
        """The next letter, not read; empty at the end."""
        while True:
            text, final = self._window()
            if text or final:
                return text[:1]
            yield

    def take(self, word: str) -> Steps[bool]:
        """Read a word if it comes next."""
        while True:
            text, final = self._window()
            if text.startswith(word):
                self._skip(len(word))
                return True
            if final or not word.startswith(text):
                return False
            yield

    def take_run(self, letters: re.Pattern[str]) -> Steps[str]:
        """Read as many letters as match a pattern of one letter repeated."""
        run = ""
        while True:
            text, final = self._window()
            found = letters.match(text)
            length = 0 if found is None else found.end()
            run += text[:length]
            self._skip(length)
            if length < len(text) or final:
                return run
            yield

    def scan(self, scanner: JsonScanner, emit: Callable[[str], None]) -> Steps[None]:
        """Read a JSON value as far as it goes; whether all of it came is the scanner's to say."""
        while True:
            text, final = self._window()
            out, length = scanner.push(text)
            self._skip(length)
            if out:
                emit(out)
            if scanner.done or scanner.broken or final:
                return
            yield

    def _window(self) -> tuple[str, bool]:
        """The text that may be read now, and whether nothing follows it."""
        text = self._text
        if self._bounds is None:
            return text, self._ended
        if (found := self._bounds.find(text)) is not None:
            return text[: found.start()], True
        if self._ended and not self.cut:
            return text, True
        return text[: len(text) - self._bounds.num_begun(text)], self._ended

    def _skip(self, count: int) -> None:
        if count:
            if self._kept is not None:
                self._kept.append(self._text[:count])
            self._text = self._text[count:]
