"""One token stream in the engine, from submission to its last token.

Why: everything the control plane knows about a sequence is here and nowhere else, so preemption and
abort have one record to change. Runs in the head process; holds no tensors and reads no clock.

The life of a sequence, and what is held in each state:

    WAITING --admit--> PREFILLING --last chunk placed--> DECODING --stop--> FINISHED
       ^  no blocks       blocks, known to the stages       the same           nothing
       |                     |                                 |
       +------preempt--------+--------------preempt------------+

A decode is a chunk of one token: both are "compute tokens [num_scheduled_tokens, ...)".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from operator import attrgetter
from typing import TypeAlias

from atom_lite.messages import SubmitSequence
from atom_lite.scheduler.deadlines import Deadline, no_deadline

Order: TypeAlias = tuple[int, int]
"""(priority, submission number): smaller is served earlier and preempted later."""

Turn: TypeAlias = tuple[int, float, int]
"""(priority, when its prefill is due, submission number): smaller is prefilled earlier."""


class State(Enum):
    """Where a sequence stands; see the picture above."""

    WAITING = "waiting"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Sequence:
    """A live sequence. Only the roster changes `state` and `block_ids`.

    `tokens` are prompt and output together. All of them up to `prefill_end` are computed as
    prefill: at first the prompt, after a preemption the output so far as well.
    """

    submission: SubmitSequence
    order: Order
    max_output_tokens: int  # what max_tokens, max_model_len and the pool leave
    root_digest: bytes | None  # the names of its blocks begin with it; None: none is shared
    tokens: list[int]
    deadline: Deadline = field(default_factory=no_deadline)  # of its next token
    prefill_due: float = 0.0  # by the batching policy; 0 where that goes by order alone
    state: State = State.WAITING
    epoch: int = 0  # counts preemptions; results of an old epoch are dropped
    prefill_end: int = 0
    num_scheduled_tokens: int = 0  # their KV is written or will be by a step in flight
    # Its next token is being drawn or, where it wants none, the end of its prompt computed.
    awaits_result: bool = False
    last_step_id: int = -1
    block_ids: list[int] = field(default_factory=list)
    num_promised_blocks: int = 0  # that it is still to be sure of, see `capacity`
    num_sent_blocks: int = 0  # of block_ids, how many the stages know
    digests: list[bytes] = field(default_factory=list)  # of the full blocks of `tokens`, lazily
    num_registered_blocks: int = 0
    num_preemptions: int = 0
    num_cached_tokens: int = 0  # prefix cache hits at the first admission
    next_scored_position: int = 1  # of the prompt, where its log probabilities are asked for
    first_scheduled_time: float | None = None
    first_token_time: float | None = None

    @property
    def sequence_id(self) -> int:
        """The id that the frontend chose."""
        return self.submission.sequence_id

    @property
    def turn(self) -> Turn:
        """Its place among those that wait for their prefill."""
        priority, number = self.order
        return (priority, self.prefill_due, number)

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens that the client sent."""
        return len(self.submission.prompt_token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Tokens drawn so far, a final stop token included."""
        return len(self.tokens) - len(self.submission.prompt_token_ids)

    @property
    def reports_prompt(self) -> bool:
        """Whether the client wants log probabilities of the prompt."""
        return self.submission.sampling.num_prompt_logprobs is not None

    @property
    def is_running(self) -> bool:
        """Holds blocks and is known to the stages."""
        return self.state is State.PREFILLING or self.state is State.DECODING

    @property
    def num_prefill_tokens_left(self) -> int:
        """Tokens of the prompt (or of a recomputation) not yet in a step."""
        return self.prefill_end - self.num_scheduled_tokens

    @property
    def has_more_to_decode(self) -> bool:
        """Whether it takes another step once its result in flight, if any, has come back."""
        coming = len(self.tokens) - len(self.submission.prompt_token_ids) + self.awaits_result
        return coming < self.max_output_tokens


by_order = attrgetter("order")  # a sort key
