"""Find stop strings in a text that arrives in parts, holding back no more than must be.

Semantics, independent of how the text is split:

- The stop whose last character comes first wins. If several end at that character, the longest.
- Text before the stop is released; the stop itself only with `include_in_output`; text after never.
- Held back is only the longest end of the text that is a proper beginning of some stop, and nothing
  with `include_in_output`, where that text is sent in either case.

Cost: Aho-Corasick, one transition per character, however many stops there are and however alike.
The automaton is built on demand, only where the text walks: a request with hundreds of long stops
pays for its output's length, not for the stops'. One instance per sequence, in the frontend.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

from atom_lite.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Sequence


class StopMatcher:
    """Watches one text for stop strings."""

    def __init__(self, stops: Sequence[str], *, include_in_output: bool = False) -> None:
        if "" in stops:
            raise RequestError("a stop string must not be empty", param="stop")
        self._automaton = _Automaton(sorted(set(stops)))
        self._state = self._automaton.root
        self._include = include_in_output
        self._held = ""  # with include_in_output: sent already, kept to know the whole stop
        self.matched: str | None = None

    @property
    def num_held_chars(self) -> int:
        """How much of the text so far is not sent yet."""
        return 0 if self._include else len(self._held)

    def push(self, text: str, *, armed: bool = True) -> tuple[str, str | None]:
        """Take the next part of the text.

        Args:
            text: any length, also empty.
            armed: False lets stops that end in this part pass as plain text.

        Returns:
            The text that may be sent, and the stop that ended the text, if one did. After that,
            nothing more is taken.
        """
        if self.matched is not None:
            return "", None
        automaton, state = self._automaton, self._state
        if state is automaton.root and automaton.first_letters.isdisjoint(text):
            return text, None
        for index, letter in enumerate(text):
            state = automaton.step(state, letter)
            if armed and state.stop is not None:
                return self._end(text[: index + 1], state.stop)
        self._state = state
        return self._release(text)

    def _release(self, text: str) -> tuple[str, str | None]:
        if self._include:
            return text, None
        known = self._held + text
        cut = len(known) - self._state.depth
        self._held = known[cut:]
        return known[:cut], None

    def _end(self, text: str, stop: str) -> tuple[str, str | None]:
        self.matched = stop
        if self._include:
            return text, stop
        known = self._held + text
        self._held = ""
        return known[: len(known) - len(stop)], stop

    def finish(self) -> str:
        """The text is over: what was held after all."""
        held, self._held = self._held, ""
        return held


class _State:
    """A beginning that some stops share: stops[low:high] of the sorted list, `depth` letters long.

    Attributes:
        fallback: the longest proper end of this beginning that is itself a beginning.
        stop: the longest stop that this beginning ends with.
        steps: the states after one more letter, as far as they have been needed.
    """

    __slots__ = ("depth", "fallback", "high", "low", "steps", "stop")

    def __init__(self, low: int, high: int, depth: int, stop: str | None) -> None:
        self.low = low
        self.high = high
        self.depth = depth
        self.stop = stop
        self.fallback: _State = self
        self.steps: dict[str, _State] = {}


class _Automaton:
    """Aho-Corasick over a sorted list of different stops, its states made when first entered."""

    def __init__(self, stops: list[str]) -> None:
        self._stops = stops
        self.first_letters = frozenset(stop[0] for stop in stops)
        self.root = _State(0, len(stops), 0, None)

    def step(self, state: _State, letter: str) -> _State:
        """The state after one more letter."""
        return state.steps.get(letter) or self._make_step(state, letter)

    def _make_step(self, state: _State, letter: str) -> _State:
        """Learn the step from this state and from its fallbacks that do not know it yet."""
        unknown = [state]
        while state is not self.root and letter not in state.fallback.steps:
            state = state.fallback
            unknown.append(state)
        target = self.root if state is self.root else state.fallback.steps[letter]
        for state in reversed(unknown):
            child = self._child(state, letter)
            if child is not None:
                child.fallback = target
                child.stop = child.stop or target.stop
                target = child
            state.steps[letter] = target
        return target

    def _child(self, state: _State, letter: str) -> _State | None:
        """The beginning that is one letter longer, if any stop has it."""
        depth = state.depth

        def letter_at(stop: str) -> str:
            return stop[depth : depth + 1]

        low = bisect_left(self._stops, letter, state.low, state.high, key=letter_at)
        high = bisect_right(self._stops, letter, low, state.high, key=letter_at)
        if low == high:
            return None
        shortest = self._stops[low]  # the shortest of the range sorts first
        return _State(low, high, depth + 1, shortest if len(shortest) == depth + 1 else None)
