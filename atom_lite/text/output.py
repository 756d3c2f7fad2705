"""The one text pipeline: output token ids -> detokenizer -> thoughts apart -> stop strings -> text.

Streaming and whole answers use the same instance of it, so they cannot differ: a whole answer is
the joined deltas. Stop strings apply to the answer, in which tool calls are not told apart yet
(`message.py` does), and not to thoughts. Runs in the frontend, one instance per sequence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from atom_lite.text.detokenizer import IncrementalDetokenizer
from atom_lite.text.stop_strings import StopMatcher

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atom_lite.text.reasoning import ReasoningSplitter
    from atom_lite.text.tokenizer import Tokenizer


class TextDelta(NamedTuple):
    """What a push brought.

    Attributes:
        text: may be sent now; empty while a character or a possible stop is incomplete.
        stop: the stop string that ended the output, in the push that completed it.
        num_tokens: tokens of this push that count as output, up to the one that completed the stop.
        thought: comes before the text; nothing unless thoughts are told apart.
    """

    text: str
    stop: str | None
    num_tokens: int
    thought: str = ""


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
        reasoning: ReasoningSplitter | None = None,
        shown_special_ids: frozenset[int] = frozenset(),
    ) -> None:
        """Start an empty output.

        Args:
            tokenizer: of the model.
            prompt_token_ids: context of the first output token.
            stops: strings that end the output; none may be empty.
            include_stop_str_in_output: keep the stop itself in the text.
            skip_special_tokens: leave control tokens out of the text.
            min_tokens: a stop counts only if a token after the first `min_tokens` completes it.
            reasoning: takes thoughts apart.
            shown_special_ids: control tokens that are left in: the marks of a format.
        """
        self._detokenizer = IncrementalDetokenizer(
            tokenizer,
            prompt_token_ids,
            skip_special_tokens=skip_special_tokens,
            shown_special_ids=shown_special_ids,
        )
        self._matcher = (
            StopMatcher(stops, include_in_output=include_stop_str_in_output) if stops else None
        )
        self._min_tokens = min_tokens
        self._reasoning = reasoning
        self.num_tokens = 0  # of the whole output so far
        self.num_thought_tokens = 0  # of these, up to the mark that ends the thoughts
        # Letters of the output, marks included: that have come, of these behind the thoughts, and
        # of those that are sent.
        self.num_chars = 0
        self._num_answered = 0
        self._num_answer_sent = 0

    @property
    def stop(self) -> str | None:
        """The stop string that ended the output, if one did."""
        return None if self._matcher is None else self._matcher.matched

    @property
    def splits_thoughts(self) -> bool:
        """Whether thoughts are told apart."""
        return self._reasoning is not None

    @property
    def num_sent_chars(self) -> int:
        """Letters of the output that are decided: sent, or left out for good."""
        held = 0 if self._reasoning is None else self._reasoning.num_held_chars
        return self.num_chars - held - self._num_answered + self._num_answer_sent

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
        if self._matcher is None and self._reasoning is None:
            text = self._detokenizer.push(shown)
            self._count(text, text, text)
            self.num_tokens += len(shown)
            delta = TextDelta(text, None, len(shown))
        else:
            delta = self._push_watched(shown)
        if delta.stop is None and hide_last:
            self.num_tokens += 1
            delta = delta._replace(num_tokens=len(token_ids))
        return delta

    def _push_watched(self, token_ids: Sequence[int]) -> TextDelta:
        """Take tokens one by one, to know which stopped and which were thought."""
        thoughts, sent = [], []
        for count, token_id in enumerate(token_ids, start=1):
            self.num_tokens += 1
            if self._reasoning is not None and self._reasoning.thinking:
                self.num_thought_tokens += 1
            thought, text, stop = self._take(self._detokenizer.push((token_id,)))
            thoughts.append(thought)
            sent.append(text)
            if stop is not None:
                return TextDelta("".join(sent), stop, count, "".join(thoughts))
        return TextDelta("".join(sent), None, len(token_ids), "".join(thoughts))

    def _take(self, text: str) -> tuple[str, str, str | None]:
        """New text as thought, text that may be sent, and stop."""
        thought, answer = ("", text) if self._reasoning is None else self._reasoning.push(text)
        sent, stop = self._watch(answer)
        self._count(text, answer, sent)
        return thought, sent, stop

    def _watch(self, answer: str) -> tuple[str, str | None]:
        if self._matcher is None:
            return answer, None
        return self._matcher.push(answer, armed=self.num_tokens > self._min_tokens)

    def _count(self, text: str, answer: str, sent: str) -> None:
        self.num_chars += len(text)
        self._num_answered += len(answer)
        self._num_answer_sent += len(sent)

    def finish(self, *, cut: bool = False) -> TextDelta:
        """No more tokens will come: the text still held. Empty after a stop.

        Args:
            cut: the output did not end by itself.
        """
        if self.stop is not None:
            return TextDelta("", None, 0)
        thought, sent, stop = self._take(self._detokenizer.finish())
        if self._reasoning is not None and stop is None:
            last_thought, answer = self._reasoning.finish(cut=cut)
            thought += last_thought
            more, stop = self._watch(answer)
            sent += more
            self._count("", answer, more)
        if stop is None and self._matcher is not None:
            more = self._matcher.finish()
            sent += more
            self._count("", "", more)
        return TextDelta(sent, stop, 0, thought)
