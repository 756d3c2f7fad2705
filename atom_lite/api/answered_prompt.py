"""A prompt as the answer shows it: its text, its tokens, its log probabilities.

The choices of one prompt share it. Only the first of them asks the engine for the prompt's log
probabilities, so the others may have output before these have come.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from atom_lite.text.echo import Echo, echo_of
from atom_lite.text.listed_tokens import ListedToken

if TYPE_CHECKING:
    from atom_lite.api.admission import PromptInput
    from atom_lite.messages import Logprobs, PromptLogprobs
    from atom_lite.text.tokenizer import Tokenizer


class AnsweredPrompt:
    """One prompt of a request.

    Args:
        tokenizer: of the model.
        prompt: as the engine gets it.
        wants_logprobs: whether the engine is asked for its log probabilities.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: PromptInput, *, wants_logprobs: bool) -> None:
        self.token_ids = prompt.token_ids
        self.logprobs: list[Logprobs] = []  # of the second token on
        self._tokenizer = tokenizer
        self._text = prompt.text
        self._num_wanted = len(prompt.token_ids) - 1 if wants_logprobs else 0

    @property
    def complete(self) -> bool:
        """Whether all that is told of the prompt has come."""
        return len(self.logprobs) >= self._num_wanted

    def add(self, event: PromptLogprobs) -> None:
        """Take the next positions."""
        assert event.start == len(self.logprobs) + 1, "the engine sends them in order"
        self.logprobs += event.positions

    @property
    def text(self) -> str:
        """What an echo puts before the output."""
        return self._echo.text if self._text is None else self._text

    @property
    def tokens(self) -> list[ListedToken]:
        """The prompt's tokens in its text; nothing is told of the first, which nothing predicts."""
        told: list[Logprobs | None] = [None, *self.logprobs]
        told += [None] * (len(self.token_ids) - len(told))  # cut off by an abort
        return [
            ListedToken(*token)
            for token in zip(self.token_ids, self._echo.starts, told, strict=True)
        ]

    @cached_property
    def _echo(self) -> Echo:
        return echo_of(self._tokenizer, self.token_ids, self._text)
