"""Which output tokens an answer lists one by one, and where in its text each begins.

Log probabilities and token ids are lists beside a text that a stop string may cut and that is held
back while one may be coming. One rule keeps them in step with it:

- A token begins at the character that its first byte belongs to. One without text of its own (a
  hidden control token, a stop token, the later bytes of a character) begins where the text stands.
- A token is listed as soon as text beyond its beginning is sent, and not before.
- Marks that are left out of the text (of thoughts, of tool calls) count as sent where they stand.
- At the end all that are left are listed, EOS or a stop token among them, unless a stop string
  ended the output: what begins at the cut or after it then never is, while a token that the cut
  goes through is.

So the parts of a stream, joined, are the list of a whole answer, and each part comes with the text
that it is about. Runs in the frontend, for requests that ask for such lists; others do without.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from atom_lite.text.output import TextDelta

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atom_lite.messages import Logprobs
    from atom_lite.text.output import OutputText


class ListedToken(NamedTuple):
    """A token of a list: its id, the character it begins at, and what was told of it."""

    token_id: int
    start: int
    logprobs: Logprobs | None = None


class ListedTokens:
    """Takes the tokens in place of an `OutputText`, which it feeds one by one."""

    def __init__(self, text: OutputText) -> None:
        self._text = text
        self._waiting: deque[ListedToken] = deque()
        self._listed: list[ListedToken] = []

    def push(
        self, token_ids: Sequence[int], logprobs: Sequence[Logprobs], *, hide_last: bool = False
    ) -> TextDelta:
        """Take the next output tokens; see `OutputText.push`.

        Args:
            token_ids: in order.
            logprobs: one for each token, or none at all.
            hide_last: the last one ended the output, and its text is not shown.
        """
        thoughts: list[str] = []
        parts: list[str] = []
        stop = None
        num_taken = 0
        last = len(token_ids) - 1
        for index, token_id in enumerate(token_ids):
            start = self._text.num_chars
            delta = self._text.push((token_id,), hide_last=hide_last and index == last)
            if delta.num_tokens == 0:  # a stop came before
                break
            told = logprobs[index] if logprobs else None
            self._waiting.append(ListedToken(token_id, start, told))
            thoughts.append(delta.thought)
            parts.append(delta.text)
            num_taken += 1
            stop = delta.stop
        self._list_sent()
        return TextDelta("".join(parts), stop, num_taken, "".join(thoughts))

    def finish(self, *, cut: bool = False) -> TextDelta:
        """No more tokens will come: the text still held; see `OutputText.finish`."""
        tail = self._text.finish(cut=cut)
        self._list_sent()
        if self._text.stop is None:
            self._listed += self._waiting
            self._waiting.clear()
        return tail

    def take(self) -> list[ListedToken]:
        """The tokens listed since the last call."""
        listed, self._listed = self._listed, []
        return listed

    def _list_sent(self) -> None:
        num_sent = self._text.num_sent_chars
        while self._waiting and self._waiting[0].start < num_sent:
            self._listed.append(self._waiting.popleft())
