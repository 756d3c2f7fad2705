"""One HTTP request's sequences while they run: tokens in, text out, every path ends.

    engine.stream --(pump task per sequence)--> SequenceOutput --(wait, take_changed)--> the answer

A pump never waits for the client: a slow reader finds its text joined in one piece, and a stream
costs one write per step at most. A stop string ends a sequence for its client at once; the pump
stays until the engine's last word, for the metrics.

Invariant: each submitted sequence is finished by the engine or aborted here, whatever happens to
the client, the pump or the engine.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from atom_lite.api.logprobs import own_logprob
from atom_lite.errors import EngineError, RequestError
from atom_lite.messages import PromptLogprobs, SequenceFinished
from atom_lite.text.listed_tokens import ListedTokens
from atom_lite.text.tool_calls.parts import Part, joined

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from atom_lite.api.answered_prompt import AnsweredPrompt
    from atom_lite.api.engine_client import EngineClient
    from atom_lite.messages import FinishReason, SequenceEvent, SubmitSequence, TokensGenerated
    from atom_lite.observability.sequence_record import SequenceRecord
    from atom_lite.text.listed_tokens import ListedToken
    from atom_lite.text.message import MessageParser
    from atom_lite.text.output import OutputText, TextDelta

logger = logging.getLogger(__name__)

# Pumps outlive the answer of their request; the event loop itself holds tasks only weakly.
_pumps: set[asyncio.Task[None]] = set()


class SequenceOutput:
    """One sequence's output so far.

    Args:
        index: of the choice in the answer.
        message: what is submitted.
        prompt: what it continues, shared with the other choices of the same prompt.
        text: turns its tokens into text and finds stop strings.
        record: its contribution to the metrics.
        hidden_ids: ids that end the sequence and whose text is not shown.
        parser: finds thoughts and calls in the text; None leaves it as it is.
        lists_tokens: whether the answer lists its tokens beside the text.
    """

    def __init__(
        self,
        index: int,
        message: SubmitSequence,
        prompt: AnsweredPrompt,
        text: OutputText,
        record: SequenceRecord,
        hidden_ids: frozenset[int],
        *,
        parser: MessageParser | None = None,
        lists_tokens: bool = False,
    ) -> None:
        self.index = index
        self.message = message
        self.prompt = prompt
        self.num_output_tokens = 0
        self.num_cached_tokens = 0
        self.finish_reason: FinishReason | None = None
        self.stop_reason: str | int | None = None
        self.fault: RequestError | EngineError | None = None
        self.parser = parser
        self._text = text
        self._listed = ListedTokens(text) if lists_tokens else None
        self._sum_logprobs = 0.0
        self._record = record
        self._hidden_ids = hidden_ids
        self._pieces: list[str] = []
        self._parts: list[Part] = []

    @property
    def finished(self) -> bool:
        """Whether nothing more will come for the client."""
        return self.finish_reason is not None

    def take_text(self) -> str:
        """The text that came since the last call."""
        text = "".join(self._pieces)
        self._pieces.clear()
        return text

    def take_parts(self) -> list[Part]:
        """What came since the last call, as the parts of a message."""
        if self.parser is None:
            text = self.take_text()
            return [Part("content", text)] if text else []
        parts, self._parts = self._parts, []
        return joined(parts)

    def take_tokens(self) -> list[ListedToken]:
        """The tokens that the answer lists with the text that came since the last call."""
        return [] if self._listed is None else self._listed.take()

    @property
    def num_thought_tokens(self) -> int | None:
        """How many output tokens were thought; None where no thoughts are looked for."""
        return self._text.num_thought_tokens if self._text.splits_thoughts else None

    @property
    def told_finish_reason(self) -> str | None:
        """Why the sequence ended, in OpenAI's words: calls are a reason of their own."""
        calls = self.parser is not None and self.parser.ends_with_calls
        return "tool_calls" if calls and self.finish_reason == "stop" else self.finish_reason

    @property
    def opens(self) -> bool:
        """Whether all that an answer may say before the output is known."""
        return self.prompt.complete or self.finished

    @property
    def mean_logprob(self) -> float:
        """Of the output's tokens; what `best_of` goes by."""
        return self._sum_logprobs / max(1, self.num_output_tokens)

    def accept(self, event: SequenceEvent) -> bool:
        """Take an event; True when a stop string ended the sequence before the engine did."""
        if isinstance(event, SequenceFinished):
            self._record.phases(event)
            self._on_engine_finished(event)
            return False
        if isinstance(event, PromptLogprobs):
            self.prompt.add(event)
            return False
        return not self.finished and self._on_tokens(event)

    def fail(self, fault: RequestError | EngineError) -> None:
        """The sequence ends without a proper end; nothing if it has ended already."""
        if not self.finished:
            self.fault = fault
            self.end("error")

    def end(self, reason: FinishReason, stop_reason: str | int | None = None) -> None:
        """Settle how the sequence ended for the client."""
        self.finish_reason, self.stop_reason = reason, stop_reason
        self._record.finish(reason, self.num_output_tokens, time.monotonic())

    def _on_tokens(self, event: TokensGenerated) -> bool:
        ids = event.token_ids
        if not ids:
            return False
        self.num_cached_tokens = max(self.num_cached_tokens, event.num_cached_tokens)
        self._record.tokens(len(ids), self.num_cached_tokens, time.monotonic())
        count = self.num_output_tokens + len(ids)
        may_end = count >= self.message.sampling.min_tokens or self.message.grammar is not None
        hide_last = ids[-1] in self._hidden_ids and may_end
        if self._listed is None:
            delta = self._text.push(ids, hide_last=hide_last)
        else:
            delta = self._listed.push(ids, event.logprobs, hide_last=hide_last)
        if event.logprobs:
            self._sum_logprobs += sum(map(own_logprob, event.logprobs[: delta.num_tokens]))
        self.num_output_tokens += delta.num_tokens
        self._add(delta)
        if delta.stop is None:
            return False
        self._end_message(cut=True)
        self.end("stop", delta.stop)
        return True

    def _add(self, delta: TextDelta) -> None:
        if self.parser is not None:
            self._parts += self.parser.feed(delta)
        elif delta.text:
            self._pieces.append(delta.text)

    def _end_message(self, *, cut: bool) -> None:
        if self.parser is not None:
            self._parts += self.parser.finish(cut=cut)

    def _on_engine_finished(self, event: SequenceFinished) -> None:
        if self.finished:
            return
        self.num_cached_tokens = event.num_cached_tokens
        if event.reason == "error":
            text = event.error or "The engine failed"
            if event.error_status < 500:
                self.fail(RequestError(text, status=event.error_status))
            else:
                self.fail(EngineError(text))
            return
        source = self._text if self._listed is None else self._listed
        cut = event.reason != "stop"
        self._add(source.finish(cut=cut))
        self._end_message(cut=cut or self._text.stop is not None)
        if self._text.stop is not None:  # completed by bytes that were held as half a character
            self.end("stop", self._text.stop)
        else:
            self.end(event.reason, event.stop_token_id)


class Generation:
    """All sequences of one request.

    Args:
        engine: where they run.
        outputs: one for each sequence, in the order of their index.
        num_candidates: sequences of each prompt.
        num_choices: of these, how many the answer shows.
    """

    def __init__(
        self,
        engine: EngineClient,
        outputs: Sequence[SequenceOutput],
        *,
        num_candidates: int = 1,
        num_choices: int = 1,
    ) -> None:
        self.outputs = outputs
        self._num_candidates = num_candidates
        self._num_choices = num_choices
        self.client_gone = False
        self._engine = engine
        self._news = asyncio.Event()
        self._changed: dict[int, SequenceOutput] = {}

    @property
    def fault(self) -> RequestError | EngineError | None:
        """What went wrong with any of the sequences."""
        return next((output.fault for output in self.outputs if output.fault), None)

    @property
    def settled(self) -> bool:
        """Whether the answer is complete, or there is nobody to read it."""
        return self.client_gone or all(output.finished for output in self.outputs)

    @property
    def choices(self) -> list[SequenceOutput]:
        """What the answer shows: of each prompt's candidates the likeliest, best first."""
        size, count = self._num_candidates, self._num_choices
        if size == count:
            return list(self.outputs)
        return [
            output
            for first in range(0, len(self.outputs), size)
            for output in sorted(
                self.outputs[first : first + size], key=lambda each: -each.mean_logprob
            )[:count]
        ]

    def start(self) -> None:
        """Submit every sequence."""
        for output in self.outputs:
            task = asyncio.create_task(self._pump(output))
            _pumps.add(task)
            task.add_done_callback(_pumps.discard)

    async def wait(self, timeout_seconds: float | None = None) -> bool:
        """Wait for something new; False when the time passed without."""
        if timeout_seconds is None:
            await self._news.wait()
        elif not self._news.is_set():
            try:
                async with asyncio.timeout(timeout_seconds):
                    await self._news.wait()
            except TimeoutError:
                return False
        self._news.clear()
        return True

    def take_changed(self) -> Iterable[SequenceOutput]:
        """The sequences that have had an event since the last call."""
        changed, self._changed = self._changed, {}
        return changed.values()

    def abort(self) -> None:
        """End what still runs: in the engine at its next step boundary, here at once."""
        for output in self.outputs:
            if not output.finished:
                output.end("abort")
                self._engine.abort(output.message.sequence_id)
                self._changed[output.index] = output
        self._news.set()

    def leave(self) -> None:
        """The client has gone: abort, and let whoever writes the answer stop."""
        self.client_gone = True
        self.abort()

    async def _pump(self, output: SequenceOutput) -> None:
        if output.finished:
            return
        sequence_id = output.message.sequence_id
        try:
            async for event in self._engine.stream(output.message):
                if output.accept(event):
                    self._engine.abort(sequence_id, reason="stop")
                self._report(output)
                if isinstance(event, PromptLogprobs):
                    self._report_all_of(output.prompt)
            output.fail(EngineError("The engine ended a sequence without a last word"))
        except EngineError as error:
            output.fail(error)
        except Exception:
            logger.exception("sequence %d failed in the frontend", sequence_id)
            output.fail(EngineError("Internal server error"))
            self._engine.abort(sequence_id)
        self._report(output)
        if output.fault is not None:
            self.abort()  # one failed sequence fails the request: the others need not go on

    def _report_all_of(self, prompt: AnsweredPrompt) -> None:
        """The choices of a prompt may begin with what is told of it."""
        for output in self.outputs:
            if output.prompt is prompt:
                self._report(output)

    def _report(self, output: SequenceOutput) -> None:
        self._changed[output.index] = output
        self._news.set()
