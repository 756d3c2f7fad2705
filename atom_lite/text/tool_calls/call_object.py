"""A call as a JSON object: `{"name": ..., "arguments": {...}}`, its members in any order."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from atom_lite.text.tool_calls.json_scanner import JsonScanner

if TYPE_CHECKING:
    from atom_lite.text.tool_calls.parser import ToolCallParser
    from atom_lite.text.tool_calls.reader import Steps

# What a bare object that is a call may begin with; `declared_only` objects must.
_FIRST_KEYS = ("name", "type", "id", "arguments", "parameters")
_ARGUMENT_KEYS = ("arguments", "parameters")


class CallObject:
    """Reads one object for a parser.

    Args:
        parser: whose reader is read, and whose call begins.
        declared_only: a name that the request does not declare makes it no call.
    """

    def __init__(self, parser: ToolCallParser, *, declared_only: bool = False) -> None:
        self._parser = parser
        self._reader = parser.reader
        self._declared_only = declared_only
        self._named = False
        self._told = False  # whether there are arguments
        self._early: str | None = None  # arguments that came before the name

    def read(self) -> Steps[bool]:
        """Read it, and say whether it was a call.

        What was read of an object that is no call becomes content. What follows a break, up to the
        reader's bounds, is left out.
        """
        parser, reader = self._parser, self._reader
        reader.keep()
        yield from reader.skip_space()
        parser.broken = not (yield from reader.take("{"))
        while not parser.broken:
            key = yield from self._next_key()
            if key is None or not (yield from self._read_member(key)):
                break
        if not self._named:
            text = reader.kept()
            if not reader.at_cut:
                parser.content(text)
            return False
        if not self._told:
            parser.end_without_arguments()
        if parser.broken:
            yield from reader.copy_rest(parser.ignore)
        return True

    def _next_key(self) -> Steps[str | None]:
        """The key of the next member, its colon read; None after the last one."""
        reader = self._reader
        yield from reader.skip_space(",")
        if (yield from reader.take("}")):
            return None
        key = yield from self._string()
        yield from reader.skip_space()
        if key is None or not (yield from reader.take(":")):
            self._parser.broken = True
            return None
        yield from reader.skip_space()
        return key

    def _read_member(self, key: str) -> Steps[bool]:
        """Read a value; False if the object is no call."""
        parser = self._parser
        if self._declared_only and not self._named and key not in _FIRST_KEYS:
            return False  # an answer in JSON, which need not wait
        if key == "name" and not self._named:
            name = yield from self._string()
            self._named = bool(name) and not (self._declared_only and name not in parser.functions)
            if name is not None and self._named:
                parser.begin_call(name)
                if self._early is not None:
                    parser.arguments(self._early)
            return self._named
        if key in _ARGUMENT_KEYS and not self._told:
            self._told = True
            if self._named:
                yield from parser.read_arguments()
            else:
                self._early = yield from parser.collected_arguments()
            return True
        scanner = JsonScanner()
        yield from self._reader.scan(scanner, parser.ignore)
        parser.broken = not scanner.done
        return True

    def _string(self) -> Steps[str | None]:
        """A JSON string, None if there is none."""
        if (yield from self._reader.peek()) != '"':
            return None
        scanner = JsonScanner()
        pieces: list[str] = []
        yield from self._reader.scan(scanner, pieces.append)
        return str(json.loads("".join(pieces))) if scanner.done else None
