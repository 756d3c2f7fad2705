"""A second implementation of EngineClient without a model: it emits the ids it is told to.

What a sequence emits is its `script`, else what the test's `plan` says for its message. It keeps
the engine's promises (max_tokens, EOS, stop ids, min_tokens, one terminal event, aborts at a step
boundary, log probabilities in the shape of `messages.Logprobs`) and counts what is open. Two paces:
free (a step whenever the loop comes round) or, after `hold()`, one step for each `step()`.

Its log probabilities are made up but consistent: see `logprob_of` and `likeliest`.
"""

from __future__ import annotations

import asyncio
import itertools
import struct
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from atom_lite.errors import EngineError
from atom_lite.messages import (
    EngineReady,
    EngineStats,
    FinishReason,
    Logprobs,
    PromptLogprobs,
    SequenceEvent,
    SequenceFinished,
    SequenceTimings,
    SubmitSequence,
    TokensGenerated,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


def engine_ready(**changes: object) -> EngineReady:
    """A small engine's first message."""
    values = {
        "vocab_size": 300,
        "max_model_len": 256,
        "eos_token_ids": [0],
        "block_size": 16,
        "num_blocks": 64,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 64,
        "device": "cpu",
        "dtype": "float32",
        "architecture": "FakeForCausalLM",
        "default_sampling": {},
        "memory_bytes": {"weights": 1, "kv_cache": 1},
    }
    return EngineReady(**(values | changes))


PROMPT_POSITIONS_PER_EVENT = 3


def logprob_of(position: int, token_id: int) -> float:
    """Of a token at a place of prompt plus output; one is impossible, the lower ids likelier."""
    return float("-inf") if token_id == 7 else -0.125 * token_id - position


def likeliest(position: int, count: int) -> list[int]:
    """The ids of the greatest log probabilities there, best first."""
    return sorted(range(count + 1), key=lambda token_id: -logprob_of(position, token_id))[:count]


def logprobs_at(position: int, token_id: int, count: int) -> Logprobs:
    """What the engine tells of a token there, with this many alternatives."""
    ids = [token_id, *likeliest(position, count)]
    values = [logprob_of(position, each) for each in ids]
    return Logprobs(
        token_ids=struct.pack(f"<{len(ids)}i", *ids),
        logprobs=struct.pack(f"<{len(ids)}f", *values),
        rank=1 + sum(logprob_of(position, each) > values[0] for each in range(token_id + 8)),
    )


@dataclass
class _Open:
    message: SubmitSequence
    ids: list[int]
    inbox: asyncio.Queue[SequenceEvent | EngineError] = field(default_factory=asyncio.Queue)
    num_sent: int = 0
    prompt_told: bool = False
    first_token_time: float | None = None


class FakeEngine:
    """Args:
    ready: the engine's first message.
    plan: ids that a sequence emits when its message has no script; EOS follows.
    tokens_per_step: tokens of a sequence in one event.
    """

    def __init__(
        self,
        ready: EngineReady | None = None,
        *,
        plan: Callable[[SubmitSequence], list[int]] = lambda _message: [],
        tokens_per_step: int = 1,
    ) -> None:
        self.ready = ready or engine_ready()
        self.alive = True
        self.responding = True
        self.stats = EngineStats()
        self.submitted: list[SubmitSequence] = []
        self.aborted: list[tuple[int, str]] = []
        self.num_cache_resets = 0
        self.num_cached_tokens = 0
        self.refusal: tuple[int, str] | None = None
        self._plan = plan
        self._tokens_per_step = tokens_per_step
        self._open: dict[int, _Open] = {}
        self._ids = itertools.count(1)
        self._held = False
        self._change = asyncio.Event()

    @property
    def num_open(self) -> int:
        return len(self._open)

    def next_sequence_id(self) -> int:
        return next(self._ids)

    async def stream(self, message: SubmitSequence) -> AsyncIterator[SequenceEvent]:
        if not self.alive:
            raise EngineError("the engine is dead")
        ids = self._plan(message) if message.script is None else message.script
        opened = _Open(message, [*ids, *[self.ready.eos_token_ids[0]] * 1000])
        self._open[message.sequence_id] = opened
        self.submitted.append(message)
        self._changed()
        if self.refusal is not None:
            status, text = self.refusal
            self._finish(opened, "error", error=text, error_status=status)
        runner = asyncio.create_task(self._run(opened))
        try:
            while True:
                event = await opened.inbox.get()
                if isinstance(event, EngineError):
                    raise event
                yield event
                if isinstance(event, SequenceFinished):
                    return
        finally:
            runner.cancel()
            self._open.pop(message.sequence_id, None)
            self._changed()

    def abort(self, sequence_id: int, reason: Literal["stop", "abort"] = "abort") -> None:
        self.aborted.append((sequence_id, reason))
        opened = self._open.get(sequence_id)
        if opened is not None:
            self._finish(opened, reason)

    def reset_prefix_cache(self) -> None:
        self.num_cache_resets += 1

    # ------------------------------------------------------------ what a test does with it

    def hold(self) -> None:
        """Emit nothing until `step` or `release`."""
        self._held = True

    def release(self) -> None:
        """Run freely again."""
        self._held = False
        for opened in list(self._open.values()):
            asyncio.get_running_loop().create_task(self._run(opened))

    def step(self) -> None:
        """One step of every open sequence."""
        for opened in list(self._open.values()):
            self._advance(opened)

    def die(self, reason: str = "the engine process ended with exit code -9") -> None:
        self.alive = False
        for opened in list(self._open.values()):
            opened.inbox.put_nowait(EngineError(reason))

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition on the open sequences or what was submitted."""
        while not condition():
            self._change.clear()
            await self._change.wait()

    # ------------------------------------------------------------ inside

    async def _run(self, opened: _Open) -> None:
        while not self._held and opened.message.sequence_id in self._open:
            await asyncio.sleep(0)
            self._advance(opened)

    def _advance(self, opened: _Open) -> None:
        if opened.message.sequence_id not in self._open:
            return
        message = opened.message
        if message.sampling.num_prompt_logprobs is not None and not opened.prompt_told:
            self._tell_of_prompt(opened, message.sampling.num_prompt_logprobs)
        if message.sampling.max_tokens == 0:
            self._finish(opened, "length")
            return
        sent: list[int] = []
        reason: FinishReason | None = None
        stop_token_id = None
        while reason is None and len(sent) < self._tokens_per_step:
            token_id = opened.ids[opened.num_sent]
            sent.append(token_id)
            opened.num_sent += 1
            reason, stop_token_id = self._stop(opened, token_id)
        if opened.first_token_time is None:
            opened.first_token_time = time.monotonic()
        opened.inbox.put_nowait(
            TokensGenerated(
                sequence_id=message.sequence_id,
                token_ids=sent,
                num_cached_tokens=self.num_cached_tokens,
                logprobs=self._logprobs(opened, sent),
            )
        )
        if reason is not None:
            self._finish(opened, reason, stop_token_id=stop_token_id)

    def _tell_of_prompt(self, opened: _Open, count: int) -> None:
        opened.prompt_told = True
        message = opened.message
        ids, size = message.prompt_token_ids, PROMPT_POSITIONS_PER_EVENT
        for start in range(1, len(ids), size):
            positions = [
                logprobs_at(position, ids[position], count)
                for position in range(start, min(start + size, len(ids)))
            ]
            opened.inbox.put_nowait(
                PromptLogprobs(sequence_id=message.sequence_id, start=start, positions=positions)
            )

    def _logprobs(self, opened: _Open, sent: list[int]) -> list[Logprobs]:
        count = opened.message.sampling.num_logprobs
        if count is None:
            return []
        first = len(opened.message.prompt_token_ids) + opened.num_sent - len(sent)
        return [logprobs_at(first + index, token_id, count) for index, token_id in enumerate(sent)]

    def _stop(self, opened: _Open, token_id: int) -> tuple[FinishReason | None, int | None]:
        sampling = opened.message.sampling
        if opened.message.grammar is not None and token_id in self.ready.eos_token_ids:
            return "stop", None
        if opened.num_sent >= sampling.min_tokens:
            if token_id in self.ready.eos_token_ids and not sampling.ignore_eos:
                return "stop", None
            if token_id in sampling.stop_token_ids:
                return "stop", token_id
        return ("length" if opened.num_sent >= sampling.max_tokens else None), None

    def _finish(self, opened: _Open, reason: FinishReason, **details: object) -> None:
        message = opened.message
        del self._open[message.sequence_id]
        now = time.monotonic()
        started = None if opened.first_token_time is None else message.arrival_time
        opened.inbox.put_nowait(
            SequenceFinished(
                sequence_id=message.sequence_id,
                reason=reason,
                timings=SequenceTimings(
                    arrival_time=message.arrival_time,
                    first_scheduled_time=started,
                    first_token_time=opened.first_token_time,
                    finish_time=now,
                ),
                num_prompt_tokens=len(message.prompt_token_ids),
                num_output_tokens=opened.num_sent,
                num_cached_tokens=self.num_cached_tokens,
                **details,
            )
        )
        self._changed()

    def _changed(self) -> None:
        self._change.set()
