"""The default policy: plan the whole prompt so that it gets through the pipeline soonest.

No base chunk to guess: the target latency comes from the fitted models, the prompt, its prefix hit
and the load. Short prompts are pipelined too, and no prompt ends in a tiny tail. Other prefills do
not switch it off, they fill the drain: fewer chunks, still of one latency. Chunks of several
prompts share a step only as long as it takes no longer than those beside it: one that is twice as
long holds all stages up. Beside token streams, which wait for every step, the shortest steps that
cost next to nothing are taken.

Until a model is there, each prompt's chunks alternate between a sixth of it and a quarter of that:
sizes far apart, each over many prefixes, are what tells the terms of the model apart.

Searches run in the background. A search starts when the prompt arrives; until it is done, which
takes milliseconds, `next_chunk` answers 0 and the step goes without. So chunk sizes never depend on
how fast the search was. Pure; runs in the head process.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from atom_lite.chunking.background import Background, Inline
from atom_lite.chunking.cuts import Span, next_size, settle_tail
from atom_lite.chunking.plan_search import Pipeline, Plan, plan
from atom_lite.chunking.planner import ChunkDecision, ChunkRequest, PlanLimits, Supply

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atom_lite.chunking.latency_model import LatencyModel

EXPLORED_PARTS = 6  # of a prompt: its large chunks while there is no model
EXPLORED_RATIO = 4  # between its large and its small chunks
MAX_PROMPTS = 4096
LEVEL_TOLERANCE = 0.1  # of a step's time: so much longer counts as level
PACE_DECAY = 0.97  # a step: steps of prompts that share the pipeline shorten no faster


class _Load(NamedTuple):
    """What a plan depends on besides prompt and models.

    The number of prefills counts up to a factor of two: a load that rises and falls by one with
    every prompt would else have each of them planned again and again.
    """

    num_prefills: int  # rounded up to a power of two
    beside_streams: bool


@dataclass(slots=True)
class _Step:
    """The step that is being put together: the prompt it began with, and the time that is left."""

    first: int
    seconds_left: float


@dataclass(slots=True, eq=False)
class _Prompt:
    """What is remembered of a prompt: its span and, per load, its plan."""

    span: Span
    pipeline: Pipeline | None
    plans: dict[_Load, Plan] = field(default_factory=dict)
    searching: set[_Load] = field(default_factory=set)
    has_begun: bool = False
    explored_at: int = -1  # prefix of the last chunk that was sized without a model
    num_explored: int = 0


class MakespanPlanner:
    """Plans once per prompt and load; every chunk is the planned one, or what its rule allows."""

    def __init__(
        self,
        limits: PlanLimits,
        *,
        background: Background | None = None,
        transfer_seconds_per_token: float = 0.0,
    ) -> None:
        self._limits = limits
        self._background = background or Inline()
        self._transfer_seconds_per_token = transfer_seconds_per_token
        self._pipeline: Pipeline | None = None
        self._prompts: dict[int, _Prompt] = {}
        self._num_searching = 0
        self._load = _Load(1, beside_streams=False)
        self._step: _Step | None = None
        self._pace_seconds = 0.0  # of the steps that prompts share
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

    def begin_step(self, supply: Supply) -> None:
        """Note how many prompts share the pipeline; the one about to be chunked is one of them.

        Those whose last chunk is in the pipeline count too: of a steady stream of short prompts
        most are there, and few wait at any time.
        """
        num_prefills = supply.num_prefills + supply.num_in_pipe
        prefills = 1 << max(num_prefills - 1, 0).bit_length()
        self._load = _Load(prefills, beside_streams=supply.num_streams > 0)
        self._step = None
        if prefills == 1:
            self._pace_seconds = 0.0

    def prepare(self, request: ChunkRequest) -> None:
        """Begin to search the plan of a prompt that has just arrived.

        One at a time: of many that arrive together, each is planned when its turn comes.
        """
        if self._pipeline is not None and self._num_searching == 0 and not request.must_be_whole:
            prompt = self._prompt(request)
            if not self._is_one_chunk(prompt):
                self._plan(prompt)

    def next_chunk(self, request: ChunkRequest) -> ChunkDecision:
        """The plan's next chunk, bounded by what the step has left; 0 while it is searched."""
        if request.must_be_whole:
            return ChunkDecision(request.most_tokens, "whole_prompt")
        prompt = self._prompt(request)
        if prompt.pipeline is None:
            prompt.has_begun = True
            return ChunkDecision(self._bounded(self._explored(request, prompt), request), "sweep")
        size = self._planned(prompt, request.prefix_tokens)
        if size is None:
            return ChunkDecision(0, "model")
        size = self._level(size, request, prompt)
        if size:
            prompt.has_begun = True
        return ChunkDecision(size, "model")

    def forget(self, sequence_id: int) -> None:
        """Drop the prompt's plan."""
        self._prompts.pop(sequence_id, None)
        if self._step is not None and self._step.first == sequence_id:
            self._step = None

    def _prompt(self, request: ChunkRequest) -> _Prompt:
        """What is known of this prompt; starts afresh where prompt or models have changed."""
        end = request.prefix_tokens + request.remaining_tokens
        known = self._prompts.get(request.sequence_id)
        if known is not None and known.pipeline is self._pipeline and known.span.end == end:
            # A prefix hit moves the start of a prompt that was prepared, and of none that runs.
            moved = request.prefix_tokens - known.span.start
            if moved == 0 or (moved > 0 and known.has_begun):
                return known
        self._prompts.pop(request.sequence_id, None)
        if len(self._prompts) >= MAX_PROMPTS:
            del self._prompts[next(iter(self._prompts))]
        prompt = _Prompt(Span(request.prefix_tokens, end), self._pipeline)
        self._prompts[request.sequence_id] = prompt
        return prompt

    def _planned(self, prompt: _Prompt, position: int) -> int | None:
        """The size of the chunk at a position; None while the plan is searched.

        It is the planned one where the prompt has kept to the plan. A step with little room may
        have left it: then it is what the plan's target allows.
        """
        if self._is_one_chunk(prompt):
            return prompt.span.end - position
        found = self._plan(prompt)
        if found is None:
            return None
        assert prompt.pipeline is not None
        model = prompt.pipeline.slowest(prompt.span)
        return found.size_at(position) or next_size(
            model, prompt.span, position, found.target, self._limits
        )

    def _is_one_chunk(self, prompt: _Prompt) -> bool:
        """Whether a prompt is too short to be cut, so that there is nothing to search."""
        return prompt.span.tokens < 2 * self._limits.floor

    def _plan(self, prompt: _Prompt) -> Plan | None:
        """The plan for the load of now, else for another one, else None: it is searched."""
        assert prompt.pipeline is not None
        load = self._load
        if load not in prompt.plans and load not in prompt.searching:
            self._search(prompt, load)
        return prompt.plans.get(load) or next(iter(prompt.plans.values()), None)

    def _search(self, prompt: _Prompt, load: _Load) -> None:
        assert prompt.pipeline is not None

        def deliver(found: Plan) -> None:
            self._num_searching -= 1
            self.last_plan = found
            prompt.plans[load] = found

        prompt.searching.add(load)
        self._num_searching += 1
        search = partial(plan, prompt.pipeline, prompt.span, **load._asdict())
        self._background.run(search, deliver)

    def _level(self, size: int, request: ChunkRequest, prompt: _Prompt) -> int:
        """The chunk as far as the step takes it and is as long as others; 0 where it waits.

        Of the prompts behind the step's first a chunk goes in whole or not at all: a prompt that is
        cut to fill another's step needs one chunk more.
        """
        assert prompt.pipeline is not None
        model = prompt.pipeline.slowest(prompt.span)
        position = request.prefix_tokens
        if self._step is None or self._step.first == request.sequence_id:
            size = self._bounded(size, request)
            seconds = model.chunk_seconds(position, size)
            pace = max(seconds, self._pace(prompt, model), PACE_DECAY * self._pace_seconds)
            self._pace_seconds = pace
            self._step = _Step(request.sequence_id, pace - seconds)
            return size
        seconds = model.chunk_seconds(position, size) - model.constant_seconds
        left = self._step.seconds_left + LEVEL_TOLERANCE * self._pace_seconds
        if size > request.budget_tokens or seconds > left:
            self._step.seconds_left = -math.inf  # nor do later ones get crumbs
            return 0
        self._step.seconds_left -= seconds
        return size

    def _pace(self, prompt: _Prompt, model: LatencyModel) -> float:
        """How long a step that begins with this prompt is to take, by its plan.

        A prompt of one chunk has none: then the closed form of what is least for so many of its
        kind, `sum(t) + w*max(t)` as ever, without a prefix term.
        """
        assert prompt.pipeline is not None
        if not self._is_one_chunk(prompt):
            found = self._plan(prompt)
            assert found is not None
            if len(found.sizes) > 1:
                return found.peak_seconds
        constant = model.constant_seconds
        start, tokens = prompt.span.start, prompt.span.tokens
        work = self._load.num_prefills * (model.chunk_seconds(start, tokens) - constant)
        followers = max(len(prompt.pipeline.models) - 1, 1)
        return constant + math.sqrt(constant * work / followers)

    def _explored(self, request: ChunkRequest, prompt: _Prompt) -> int:
        """Small and large in turn; asked twice at the same place, the same."""
        if request.prefix_tokens != prompt.explored_at:
            prompt.explored_at = request.prefix_tokens
            prompt.num_explored += 1
        limits = self._limits
        large = _aligned_up(prompt.span.tokens / EXPLORED_PARTS, limits)
        small = _aligned_up(large / EXPLORED_RATIO, limits)
        large = max(large, min(2 * limits.floor, limits.most))
        size = small if prompt.num_explored % 2 else large
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


def _aligned_up(tokens: float, limits: PlanLimits) -> int:
    size = math.ceil(tokens / limits.align) * limits.align
    return min(max(size, limits.floor), limits.most)
