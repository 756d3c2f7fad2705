r"""Follow a JSON value that arrives in parts, and give out only what can still become one.

The value's text comes out as it is written, with as little delay as validity allows: brackets and
the letters of strings at once, numbers and words when they are complete, commas and keys together
with the value that they lead to. So `close` can end the value at any time, and what came out is
then valid JSON.

What models get wrong without leaving a doubt is put right: raw control characters and unknown
escapes inside strings, a comma before a closing bracket, Python's True, False and None. Anything
else breaks the value: nothing more is taken.
"""

from __future__ import annotations

import json
import re
from enum import Enum, auto

MAX_DEPTH = 128  # readers of JSON give up some hundred levels further

_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_SPACE = re.compile(r"[ \t\r\n]+")
_WORD = re.compile(r"[-+.0-9A-Za-z]+")
_SCALAR = re.compile(r"(?:true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)\Z")
_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}
_ESCAPED = '"\\/bfnrt'
_HEX = "0123456789abcdefABCDEF"
_CLOSERS = {"{": "}", "[": "]"}


class _Expects(Enum):
    VALUE = auto()
    ITEM = auto()  # of an array: or its end
    KEY = auto()  # or the object's end
    COLON = auto()
    NEXT = auto()  # a comma, or the end of what is open
    LETTER = auto()  # of a string
    ESCAPED = auto()
    WORD = auto()  # more of a number or word


class JsonScanner:
    """One value. Leading white space is given out as it is."""

    def __init__(self) -> None:
        self.done = False
        self.broken = False
        self._expects = _Expects.VALUE
        self._open: list[str] = []  # brackets
        self._in_key = False
        self._held = ""  # not given out yet: white space, a comma, a key and its colon
        self._token = ""  # an escape or a word that is not complete
        self._out: list[str] = []

    def push(self, text: str) -> tuple[str, int]:
        """Take text; returns what is given out, and how many letters were the value's."""
        at = 0
        while at < len(text) and not self.done and not self.broken:
            at = self._step(text, at)
        return self._take_out(), at

    def close(self) -> str:
        """End the value where it stands; returns what is missing, empty if nothing has begun."""
        if self.done:
            return ""
        if self._expects in (_Expects.LETTER, _Expects.ESCAPED) and not self._in_key:
            self._out.append('"')
        elif self._expects is _Expects.WORD and (word := _scalar(self._token)) is not None:
            self._out += [self._held, word]
        self._out += [_CLOSERS[bracket] for bracket in reversed(self._open)]
        self.done = True
        return self._take_out()

    def _take_out(self) -> str:
        out = "".join(self._out)
        self._out.clear()
        return out

    def _step(self, text: str, at: int) -> int:
        """Take one letter or a run of them; returns where to go on."""
        expects = self._expects
        if expects is _Expects.LETTER:
            return self._string(text, at)
        if expects is _Expects.ESCAPED:
            return self._escape(text, at)
        if expects is _Expects.WORD:
            return self._word(text, at)
        if (space := _SPACE.match(text, at)) is not None:
            self._held += space[0]
            return space.end()
        letter = text[at]
        if expects is _Expects.COLON:
            taken = letter == ":"
            self._held += letter
            self._expects = _Expects.VALUE
        elif expects is _Expects.NEXT:
            taken = self._next(letter)
        elif expects is _Expects.KEY:
            taken = self._key(letter)
        else:
            return self._value(text, at)
        self.broken = not taken
        return at + 1 if taken else at

    # ------------------------------------------------------------ between values

    def _value(self, text: str, at: int) -> int:
        letter = text[at]
        if letter == "]" and self._expects is _Expects.ITEM:
            self._close_bracket()
        elif letter == '"':
            self._give(letter)
            self._expects = _Expects.LETTER
        elif letter in _CLOSERS and len(self._open) < MAX_DEPTH:
            self._give(letter)
            self._open.append(letter)
            self._expects = _Expects.KEY if letter == "{" else _Expects.ITEM
        elif _WORD.match(letter) is not None:
            self._token, self._expects = "", _Expects.WORD
            return at
        else:
            self.broken = True
            return at
        return at + 1

    def _key(self, letter: str) -> bool:
        if letter == "}":
            self._close_bracket()
            return True
        self._held += letter
        self._in_key, self._expects = True, _Expects.LETTER
        return letter == '"'

    def _next(self, letter: str) -> bool:
        bracket = self._open[-1]
        if letter == _CLOSERS[bracket]:
            self._close_bracket()
            return True
        self._held += letter
        self._expects = _Expects.KEY if bracket == "{" else _Expects.ITEM
        return letter == ","

    def _close_bracket(self) -> None:
        """A comma that leads to nothing is left out."""
        self._held = self._held.replace(",", "")
        self._give(_CLOSERS[self._open.pop()])
        self._end_value()

    def _end_value(self) -> None:
        self._expects = _Expects.NEXT
        self.done = not self._open

    def _give(self, text: str) -> None:
        self._out += [self._held, text]
        self._held = ""

    # ------------------------------------------------------------ strings

    def _string(self, text: str, at: int) -> int:
        if (plain := _PLAIN.match(text, at)) is not None:
            self._write(plain[0])
            return plain.end()
        letter = text[at]
        if letter == "\\":
            self._token, self._expects = letter, _Expects.ESCAPED
        elif letter == '"':
            self._write(letter)
            if self._in_key:
                self._in_key, self._expects = False, _Expects.COLON
            else:
                self._end_value()
        else:
            self._write(json.dumps(letter)[1:-1])
        return at + 1

    def _escape(self, text: str, at: int) -> int:
        letter = text[at]
        token = self._token + letter
        self._expects = _Expects.LETTER
        if len(token) == 2 and letter in _ESCAPED:
            self._write(token)
        elif len(token) == 2 and letter == "'":
            self._write(letter)
        elif token == "\\u" or (token.startswith("\\u") and letter in _HEX):
            self._token = token
            if len(token) == 6:
                self._write(token)
            else:
                self._expects = _Expects.ESCAPED
        else:
            self._write("\\" + self._token)  # a backslash that stands for itself
            return at
        return at + 1

    def _write(self, text: str) -> None:
        if self._in_key:
            self._held += text
        else:
            self._out.append(text)

    # ------------------------------------------------------------ numbers and words

    def _word(self, text: str, at: int) -> int:
        if (run := _WORD.match(text, at)) is not None:
            self._token += run[0]
            return run.end()
        word = _scalar(self._token)
        self._token = ""
        if word is None:
            self.broken = True
        else:
            self._give(word)
            self._end_value()
        return at


def _scalar(token: str) -> str | None:
    word = _PYTHON_WORDS.get(token, token)
    return word if _SCALAR.match(word) else None
