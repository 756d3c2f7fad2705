"""The default policy: plan the whole prompt so that it gets through the pipeline soonest.

No base chunk to guess: the target latency comes from the fitted models, the prompt, its prefix hit
and the load. Short prompts are pipelined too, and no prompt ends in a tiny tail. Other prefills do
not switch it off, they weigh the drain down. Until a model is there prompts are cut into eighths or
thirds, in turn: near what is right anyway, and two sizes over many prefixes are what a fit needs.

Pure; runs in the head process. `prepare` lets a search run off the thread that feeds a stage.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from atom_lite.chunking.cuts import Span, Target, next_size, settle_tail
from atom_lite.chunking.plan_search import Pipeline, Plan, plan
from atom_lite.chunking.planner import ChunkDecision, ChunkRequest, PlanLimits
from atom_lite.chunking.sweep import Alternation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atom_lite.chunking.latency_model import LatencyModel

EXPLORED_PARTS = (8, 3)
MAX_PROMPTS = 4096


@dataclass(slots=True)
class _Prompt:
    """What is remembered of a prompt: its span and, per load, the plan's target."""

    span: Span
    pipeline: Pipeline | None
    targets: dict[bool, Target] = field(default_factory=dict)  # is_sole -> target


class MakespanPlanner:
    """Plans once per prompt and load; every chunk is the plan's rule applied to where it is."""

    def __init__(self, limits: PlanLimits, *, transfer_seconds_per_token: float = 0.0) -> None:
        self._limits = limits
        self._transfer_seconds_per_token = transfer_seconds_per_token
        self._pipeline: Pipeline | None = None
        self._prompts: dict[int, _Prompt] = {}
        self._alternation = Alternation(EXPLORED_PARTS)
        self._is_sole = True
        self.last_plan: Plan | None = None

    def install(self, models: Sequence[LatencyModel]) -> None:
        """Plan with these models, one per stage, from the next chunk on."""
        prefill = tuple(model.without_decodes() for model in models)
        if self._pipeline is not None and self._pipeline.models == prefill:
            return  # plans stay: they do not depend on decode terms
        self._pipeline = Pipeline(
            models=prefill,
            limits=self._limits,
            transfer_seconds_per_token=self._transfer_seconds_per_token,
        )

    def begin_step(self, num_prefills: int) -> None:
        """Note whether the prompt about to be chunked is the only one."""
        self._is_sole = num_prefills <= 1

    def prepare(self, request: ChunkRequest) -> None:
        """Search the plan now, so that `next_chunk` need not."""
        if self._pipeline is not None and not request.must_be_whole:
            self._target(self._prompt(request))

    def next_chunk(self, request: ChunkRequest) -> ChunkDecision:
        """The plan's next chunk, bounded by what the step has left."""
        if request.must_be_whole:
            return ChunkDecision(request.most_tokens, "whole_prompt")
        prompt = self._prompt(request)
        if prompt.pipeline is None:
            return ChunkDecision(self._bounded(self._explored(request, prompt), request), "sweep")
        size = next_size(
            prompt.pipeline.slowest(prompt.span),
            prompt.span,
            request.prefix_tokens,
            self._target(prompt),
            self._limits,
        )
        return ChunkDecision(self._bounded(size, request), "model")

    def forget(self, sequence_id: int) -> None:
        """Drop the prompt's plan."""
        self._prompts.pop(sequence_id, None)
        self._alternation.forget(sequence_id)

    def _prompt(self, request: ChunkRequest) -> _Prompt:
        """What is known of this prompt; starts afresh where prompt or models have changed."""
        end = request.prefix_tokens + request.remaining_tokens
        known = self._prompts.get(request.sequence_id)
        if (
            known is not None
            and known.pipeline is self._pipeline
            and known.span.start <= request.prefix_tokens
            and known.span.end == end
        ):
            return known
        self._prompts.pop(request.sequence_id, None)
        if len(self._prompts) >= MAX_PROMPTS:
            del self._prompts[next(iter(self._prompts))]
        prompt = _Prompt(Span(request.prefix_tokens, end), self._pipeline)
        self._prompts[request.sequence_id] = prompt
        return prompt

    def _target(self, prompt: _Prompt) -> Target:
        assert prompt.pipeline is not None
        if self._is_sole not in prompt.targets:
            self.last_plan = plan(prompt.pipeline, prompt.span, is_sole=self._is_sole)
            prompt.targets[self._is_sole] = self.last_plan.target
        return prompt.targets[self._is_sole]

    def _explored(self, request: ChunkRequest, prompt: _Prompt) -> int:
        limits = self._limits
        parts = self._alternation.choice_for(request.sequence_id)
        size = -(-prompt.span.tokens // (parts * limits.align)) * limits.align
        size = min(max(size, limits.floor), limits.most)
        return settle_tail(size, request.remaining_tokens, limits)

    def _bounded(self, size: int, request: ChunkRequest) -> int:
        """What fits of a planned chunk: still aligned where possible, and no tiny rest."""
        most, remaining = request.most_tokens, request.remaining_tokens
        if size <= most:
            return size
        tokens = most
        if 0 < remaining - tokens < self._limits.floor <= most // 2:
            tokens = remaining - self._limits.floor
        if tokens < remaining and tokens >= self._limits.align:
            tokens -= tokens % self._limits.align
        return tokens
