"""Capacity policies: how many KV blocks a sequence must be sure of before it may start.

Why: packing tightly serves more at once and may preempt; reserving serves fewer and never does.
Which is better depends on the load, so it is a choice. Pure; runs in the head process, at every
admission.

    policy           promised to a running sequence           left free beside it      preempts
    max-utilization  its prefill and its first decode         a block for each decode  yes
    watermark        the same                                 1 % of the pool          yes
    no-evict         all that it may generate, to its end     nothing                  never
    max-length       the model's longest sequence, to its end nothing                  never

A promise shrinks as its sequence takes blocks. `max-utilization` and `no-evict` are TensorRT-LLM's
names, `watermark` is vLLM V0's rule, `max-length` the reservation of systems before paged memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from atom_lite.scheduler.limits import SchedulerLimits
    from atom_lite.scheduler.roster import Roster
    from atom_lite.scheduler.sequence import Sequence

_WATERMARK_PARTS = 100


class CapacityPolicy(Protocol):
    """What an admission promises."""

    promises_last: bool
    """Whether a promise holds until the sequence ends, not only until it decodes."""

    def reach_tokens(self, sequence: Sequence) -> int:
        """Tokens whose KV a sequence that starts now is to be sure of."""
        ...

    def headroom_blocks(self, roster: Roster) -> int:
        """Blocks that stay available beside all promises; none where nothing runs."""
        ...


class MaxUtilization:
    """Start whatever can be prefilled; the latest gives way when blocks run out."""

    promises_last = False

    def reach_tokens(self, sequence: Sequence) -> int:
        """Its prefill and the token that its first decode adds."""
        return len(sequence.tokens) + 1

    def headroom_blocks(self, roster: Roster) -> int:
        """One more block for each sequence that decodes."""
        return len(roster.decoding)


class Watermark(MaxUtilization):
    """The same, with a fixed share of the pool in the place of a block for each decode."""

    def __init__(self, num_blocks: int) -> None:
        self._headroom_blocks = -(-num_blocks // _WATERMARK_PARTS)

    def headroom_blocks(self, roster: Roster) -> int:
        """1 % of the pool while others run."""
        return self._headroom_blocks if roster.num_running else 0


class NoEvict:
    """Start only what can run to its end; what has started is never paused."""

    promises_last = True

    def reach_tokens(self, sequence: Sequence) -> int:
        """Prompt and output; the KV of the last token is never written."""
        return sequence.num_prompt_tokens + max(0, sequence.max_output_tokens - 1)

    def headroom_blocks(self, roster: Roster) -> int:
        """None: every promise is kept already."""
        del roster
        return 0


class MaxLength(NoEvict):
    """Reserve the longest sequence that the model allows, whatever was asked for."""

    def __init__(self, max_model_len: int) -> None:
        self._max_model_len = max_model_len

    def reach_tokens(self, sequence: Sequence) -> int:
        """The model's limit, which no sequence exceeds."""
        del sequence
        return self._max_model_len


def make_capacity(limits: SchedulerLimits) -> CapacityPolicy:
    """The policy that the limits name; `auto` is what the batching policy is known with."""
    match limits.capacity_policy:
        case "no-evict":
            return NoEvict()
        case "max-length":
            return MaxLength(limits.max_model_len)
        case "watermark":
            return Watermark(limits.num_blocks)
        case "max-utilization":
            return MaxUtilization()
        case "auto":
            return _usual_capacity(limits)


def _usual_capacity(limits: SchedulerLimits) -> CapacityPolicy:
    match limits.batching_policy:
        case "request-level" | "orca":
            return MaxLength(limits.max_model_len)
        case "prefill-first":
            return Watermark(limits.num_blocks)
        case _:
            return MaxUtilization()
