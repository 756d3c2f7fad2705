"""What a chunk-size policy is asked and what it answers.

The scheduler decides order and admission, a planner only how much of one prompt goes into this
step. One policy per file in `planners/`. Pure; runs in the head process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, TypeAlias

DEFAULT_ALIGN_TOKENS = 64
DEFAULT_FLOOR_TOKENS = 128

Reason: TypeAlias = Literal[
    "model",  # sized by the latency model
    "sweep",  # sized by the calibration sweep
    "unreachable",  # fixed: no equal-latency chunk was reachable
    "other_prefills",  # fixed: other prefills were present
    "whole_prompt",  # fixed: this prefill must go in one forward
    "fixed",  # fixed: no model, or a policy without one
    "deadline",  # what the running streams' objectives leave time for
    "schedule",  # a static schedule
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRequest:
    """One prefill row that is about to be placed.

    Attributes:
        sequence_id: whose prompt; the same from its first chunk to its last.
        prefix_tokens: tokens whose KV is there, prefix-cache hits included.
        remaining_tokens: tokens of its prefill still to compute, at least 1.
        budget_tokens: what the step has left, at least 1.
        must_be_whole: the prefill may not be split.
    """

    sequence_id: int
    prefix_tokens: int
    remaining_tokens: int
    budget_tokens: int
    must_be_whole: bool = False

    @property
    def most_tokens(self) -> int:
        """The bound that always holds."""
        return min(self.remaining_tokens, self.budget_tokens)


class ChunkDecision(NamedTuple):
    """How many tokens to compute now (1 .. `most_tokens`), and why that many.

    0 where the planner does not know yet: a search for the plan runs, and when it ends the head's
    loop is woken.
    """

    tokens: int
    reason: Reason


class Supply(NamedTuple):
    """The work that there is for the stages when a step is put together.

    Attributes:
        num_prefills: sequences with prefill left that could be scheduled, the one about to be
            chunked included.
        num_streams: sequences that decode meanwhile.
        num_in_pipe: sequences whose last chunk is on its way through the stages.
    """

    num_prefills: int
    num_streams: int = 0
    num_in_pipe: int = 0


class ChunkPlanner(Protocol):
    """A chunk-size policy."""

    def begin_step(self, supply: Supply) -> None:
        """Called once per scheduler step, before any chunk of it is asked for."""
        ...

    def next_chunk(self, request: ChunkRequest) -> ChunkDecision:
        """How many tokens of this prompt go into this step."""
        ...

    def forget(self, sequence_id: int) -> None:
        """The sequence is done, aborted or preempted; unknown ids are ignored."""
        ...


class PlanLimits(NamedTuple):
    """Sizes that a planned chunk keeps to; made by `plan_limits`.

    Attributes:
        most: the largest aligned chunk.
        align: every chunk but the last is a multiple of this (tile and block size).
        floor: no chunk of a longer prompt is smaller; aligned, and at most half of `most`, so that
            two chunks that are too small always fit into one.
    """

    most: int
    align: int
    floor: int


def plan_limits(
    most_tokens: int,
    *,
    align_tokens: int = DEFAULT_ALIGN_TOKENS,
    floor_tokens: int = DEFAULT_FLOOR_TOKENS,
) -> PlanLimits:
    """Limits that agree with each other.

    Args:
        most_tokens: what a step without decodes can take, at least 1.
        align_tokens: halved until a step can hold two units of it.
        floor_tokens: under it time is not linear (launch and tile floors), and a tail would cost
            a whole step for nothing.
    """
    assert most_tokens >= 1 and align_tokens >= 1 and floor_tokens >= 1
    align = align_tokens
    while align > 1 and 2 * align > most_tokens:
        align //= 2
    most = most_tokens // align * align
    floor = -(-floor_tokens // align) * align
    return PlanLimits(most, align, max(align, min(floor, most // 2 // align * align)))
