"""The one text pipeline: output token ids -> detokenizer -> stop strings -> text deltas.

Streaming and whole answers use the same instance of it, so they cannot differ: a whole answer is
the joined deltas. Reasoning and tool-call parsers, which sort text into the parts of a message,
join between detokenizer and stop matcher, because stops apply to the visible answer. Runs in the
frontend, one instance per sequence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from atom_lite.text.detokenizer import IncrementalDetokenizer
from atom_lite.text.stop_strings import StopMatcher

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atom_lite.text.tokenizer import Tokenizer


class TextDelta(NamedTuple):
    """What a push brought.

    Attributes:
        text: may be sent now; empty while a character or a possible stop is incomplete.
        stop: the stop string that ended the output, in the push that completed it.
        num_tokens: tokens of this push that count as output, up to the one that completed the stop.
    """

    text: str
    stop: str | None
    num_tokens: int


class OutputText:
    """The visible text of one sequence."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_token_ids: Sequence[int],
        *,
        stops: Sequence[str] = (),
        include_stop_str_in_output: bool = False,
        skip_special_tokens: bool = True,
        min_tokens: int = 0,
    ) -> None:
        """Start an empty output.

        Args:
            tokenizer: of the model.
            prompt_token_ids: context of the first output token.
            stops: strings that end the output; none may be empty.
            include_stop_str_in_output: keep the stop itself in the text.
            skip_special_tokens: leave control tokens out of the text.
            min_tokens: a stop counts only if a token after the first `min_tokens` completes it.
        """
        self._detokenizer = IncrementalDetokenizer(
            tokenizer, prompt_token_ids, skip_special_tokens=skip_special_tokens
        )
        self._matcher = (
            StopMatcher(stops, include_in_output=include_stop_str_in_output) if stops else None
        )
        self._min_tokens = min_tokens
        self.num_tokens = 0  # of the whole output so far

    @property
    def stop(self) -> str | None:
        """The stop string that ended the output, if one did."""
        return None if self._matcher is None else self._matcher.matched

    @property
    def num_held_chars(self) -> int:
        """Characters that are complete but not sent, as they may become a stop string."""
        return 0 if self._matcher is None else self._matcher.num_held_chars

    def push(self, token_ids: Sequence[int], *, hide_last: bool = False) -> TextDelta:
        """Take the next output tokens. After a stop matched, further ones are ignored.

        Args:
            token_ids: in order.
            hide_last: the last one ended the output (EOS or a stop token): it counts as a token but
                its text is not shown.
        """
        if self.stop is not None:
            return TextDelta("", None, 0)
        shown = token_ids[:-1] if hide_last else token_ids
        if self._matcher is None:
            text = self._detokenizer.push(shown)
        else:
            text, num_taken = self._push_watched(shown, self._matcher)
            if self._matcher.matched is not None:
                self.num_tokens += num_taken
                return TextDelta(text, self._matcher.matched, num_taken)
        self.num_tokens += len(token_ids)
        return TextDelta(text, None, len(token_ids))

    def _push_watched(self, token_ids: Sequence[int], matcher: StopMatcher) -> tuple[str, int]:
        """The text to send and the number of tokens taken; one by one, to know which stopped."""
        sent = []
        for count, token_id in enumerate(token_ids, start=1):
            armed = self.num_tokens + count > self._min_tokens
            text, stop = matcher.push(self._detokenizer.push((token_id,)), armed=armed)
            sent.append(text)
            if stop is not None:
                return "".join(sent), count
        return "".join(sent), len(token_ids)

    def finish(self) -> str:
        """No more tokens will come: the text still held. Empty after a stop."""
        if self.stop is not None:
            return ""
        text = self._detokenizer.finish()
        if self._matcher is None:
            return text
        text, stop = self._matcher.push(text, armed=self.num_tokens > self._min_tokens)
        return text if stop is not None else text + self._matcher.finish()
