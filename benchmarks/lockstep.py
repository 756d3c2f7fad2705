"""Drives the real scheduler step by step, so that a run depends on its plans and on nothing else.

As many steps as the pipeline is deep are planned before the oldest one is run and committed: the
scheduler meets the in-flight rules that it meets in a server, in an order that is always the same.
All sequences of a call are submitted before its first step.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from atom_lite.messages import SamplingParams, SequenceFinished, SubmitSequence, TokensGenerated

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from atom_lite.engine.chunking_desk import ChunkingDesk
    from atom_lite.engine.executor import Executor
    from atom_lite.messages import StepPlan
    from atom_lite.scheduler.scheduler import Scheduler


class Prompt(NamedTuple):
    """Token ids to continue greedily, up to `max_tokens` or one of the stop ids."""

    token_ids: list[int]
    max_tokens: int
    stop_token_ids: tuple[int, ...] = ()


class Lockstep:
    """One scheduler over one executor.

    Args:
        scheduler: with its planner; nobody else calls it.
        executor: gives a result back for each plan, in order.
        desk: learns from the steps' times; None where nothing is to be learned.
        after_step: called with each plan that has just been run.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        desk: ChunkingDesk | None = None,
        after_step: Callable[[StepPlan], None] | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._executor = executor
        self._desk = desk
        self._after_step = after_step
        self.next_id = 0  # of the sequence submitted next; ids go up by one

    def run(self, prompts: Sequence[Prompt]) -> list[list[int]]:
        """The output token ids of each prompt, in order."""
        first = self.next_id
        self.next_id += len(prompts)
        outputs: list[list[int]] = [[] for _ in prompts]
        for index, prompt in enumerate(prompts):
            self._submit(first + index, prompt)
        flight: deque[StepPlan] = deque()
        while self._scheduler.has_work():
            self._fill(flight)
            (result,) = self._executor.take_results()
            plan = flight.popleft()
            if self._after_step is not None:
                self._after_step(plan)
            now = time.monotonic()
            for event in self._scheduler.commit(result, now):
                if isinstance(event, TokensGenerated):
                    outputs[event.sequence_id - first] += event.token_ids
                elif isinstance(event, SequenceFinished):
                    _check(event)
            if self._desk is not None:
                self._desk.finished(result)
        return outputs

    def _submit(self, sequence_id: int, prompt: Prompt) -> None:
        sampling = SamplingParams(
            max_tokens=prompt.max_tokens, temperature=0.0, stop_token_ids=prompt.stop_token_ids
        )
        message = SubmitSequence(
            sequence_id=sequence_id,
            prompt_token_ids=prompt.token_ids,
            sampling=sampling,
            arrival_time=time.monotonic(),
        )
        for event in self._scheduler.submit(message, time.monotonic()):
            assert isinstance(event, SequenceFinished)
            _check(event)
        if self._desk is not None:
            self._desk.submitted(message, self._scheduler.cached_tokens(sequence_id))

    def _fill(self, flight: deque[StepPlan]) -> None:
        while (plan := self._scheduler.schedule(time.monotonic())) is not None:
            flight.append(plan)
            self._executor.start(plan)
            if self._desk is not None:
                self._desk.planned(plan)


def _check(event: SequenceFinished) -> None:
    if event.reason not in ("stop", "length"):
        raise RuntimeError(f"sequence {event.sequence_id} ended with {event.reason}: {event.error}")
