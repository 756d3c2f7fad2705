"""Stages that check every KV read, and draw tokens that can be foretold.

What is "KV" here: each stage has slots, and the KV of a token is a digest of all tokens up to it,
chained like attention chains them, made from the stage's own mirror of the sequence (rebuilt from
plans alone, as the real stages do). A row first writes its tokens' KV and then reads the KV of its
whole context: any slot that was reused too early, shared wrongly, or never written shows at once.

The drawn token is a function of that digest, so the output of a sequence is the same under any
schedule: `expected_output` computes it without one. So are the log probabilities that a stage
reports (`foretold_logprobs`). Runs in simulations and tests only. Each read
costs time in proportion to its context: not for prompts of 100,000 tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256
from struct import pack
from typing import TYPE_CHECKING, NamedTuple

from atom_lite.messages import Logprobs, PromptScores, SampledToken, SamplingParams

if TYPE_CHECKING:
    from atom_lite.messages import StepPlan, StepRow, SubmitSequence

VOCABULARY = 50


def chain(parent: bytes, token_id: int) -> bytes:
    """The digest of all tokens up to this one."""
    return sha256(parent + token_id.to_bytes(4, "big")).digest()


def draw(digest: bytes) -> int:
    """The token that follows."""
    return int.from_bytes(digest[:4], "big") % VOCABULARY


def foretold_logprobs(digest: bytes, token_id: int, count: int | None) -> Logprobs | None:
    """What is said of a token, and of `count` others, after the tokens that `digest` stands for."""
    if count is None:
        return None
    values = (-float(digest[index % len(digest)]) for index in range(1 + count))
    return Logprobs(
        token_ids=pack(f"<{1 + count}i", token_id, *range(count)),
        logprobs=pack(f"<{1 + count}f", *values),
        rank=1 + digest[-1],
    )


def expected_logprobs(
    message: SubmitSequence, output: list[int]
) -> tuple[list[Logprobs], list[Logprobs]]:
    """What must be said of the prompt, from its second token on, and of the output."""
    digest = b""
    told = []
    tokens = [*message.prompt_token_ids, *output]
    num_prompt = len(message.prompt_token_ids)
    sampling = message.sampling
    for position, token_id in enumerate(tokens):
        is_prompt = position < num_prompt
        count = sampling.num_prompt_logprobs if is_prompt else sampling.num_logprobs
        told.append(foretold_logprobs(digest, token_id, count) if position > 0 else None)
        digest = chain(digest, token_id)
    said = [
        [one for one in part if one is not None] for part in (told[:num_prompt], told[num_prompt:])
    ]
    return said[0], said[1]


def expected_output(
    message: SubmitSequence, most: int, eos_token_ids: frozenset[int] = frozenset()
) -> list[int]:
    """What the sequence must generate, computed alone and at once."""
    digest = b""
    for token_id in message.prompt_token_ids:
        digest = chain(digest, token_id)
    output: list[int] = []
    sampling = message.sampling
    while len(output) < most:
        output.append(draw(digest))
        stops = output[-1] in sampling.stop_token_ids or (
            output[-1] in eos_token_ids and not sampling.ignore_eos
        )
        if stops and len(output) >= sampling.min_tokens:
            break
        digest = chain(digest, output[-1])
    return output


@dataclass
class Mirror:
    """What a stage knows of one sequence."""

    epoch: int
    tokens: list[int]
    num_prompt_tokens: int
    sampling: SamplingParams
    digests: list[bytes] = field(default_factory=list)
    block_ids: list[int] = field(default_factory=list)

    def digest_at(self, position: int) -> bytes:
        """What the KV at this position must be."""
        while len(self.digests) <= position:
            parent = self.digests[-1] if self.digests else b""
            self.digests.append(chain(parent, self.tokens[len(self.digests)]))
        return self.digests[position]


class StageAnswer(NamedTuple):
    """What a step's result would carry."""

    tokens: list[SampledToken]
    prompt_scores: list[PromptScores]


class AuditedStage:
    """Runs plans in the order given; knows nothing but what they say."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._block_size = block_size
        self._slots: list[bytes | None] = [None] * (num_blocks * block_size)
        self._mirrors: dict[int, Mirror] = {}

    def run(self, plan: StepPlan) -> StageAnswer:
        """Write and read what the plan says.

        Returns:
            A token for each row that is sampled, and what is to be said of prompt tokens.

        Raises:
            AssertionError: a row read what is not its own, or the plan contradicts earlier ones.
        """
        for sequence_id, epoch in plan.drops:
            assert self._mirrors.pop(sequence_id).epoch == epoch
        for start in plan.starts:
            assert start.sequence_id not in self._mirrors, "started twice"
            self._mirrors[start.sequence_id] = Mirror(
                start.epoch, list(start.token_ids), start.num_prompt_tokens, start.sampling
            )
        for row in plan.rows:
            self._write(row)
        for row in plan.rows:
            self._read(row)
        return StageAnswer(
            [self._sample(row) for row in plan.rows if row.sample],
            [scores for row in plan.rows if (scores := self._score(row)).positions],
        )

    def _slot(self, mirror: Mirror, position: int) -> int:
        block_id = mirror.block_ids[position // self._block_size]
        return block_id * self._block_size + position % self._block_size

    def _write(self, row: StepRow) -> None:
        mirror = self._mirrors[row.sequence_id]
        assert mirror.epoch == row.epoch
        mirror.block_ids += row.new_block_ids
        if row.token_ids:
            assert len(mirror.tokens) == row.start, "a decode must carry on where its row is"
            mirror.tokens += row.token_ids
        for position in range(row.start, row.start + row.num_tokens):
            self._slots[self._slot(mirror, position)] = mirror.digest_at(position)

    def _read(self, row: StepRow) -> None:
        mirror = self._mirrors[row.sequence_id]
        for position in range(row.start + row.num_tokens):
            stored = self._slots[self._slot(mirror, position)]
            assert stored == mirror.digest_at(position), (
                f"sequence {row.sequence_id} reads foreign KV at {position}"
            )

    def _score(self, row: StepRow) -> PromptScores:
        mirror = self._mirrors[row.sequence_id]
        start = row.start + 1
        end = min(start + row.num_tokens, mirror.num_prompt_tokens)
        count = mirror.sampling.num_prompt_logprobs
        told = [
            foretold_logprobs(mirror.digest_at(position - 1), mirror.tokens[position], count)
            for position in range(start, end)
        ]
        positions = [logprobs for logprobs in told if logprobs is not None]
        return PromptScores(row.sequence_id, row.epoch, start, positions)

    def _sample(self, row: StepRow) -> SampledToken:
        mirror = self._mirrors[row.sequence_id]
        end = row.start + row.num_tokens
        assert end == len(mirror.tokens), "only the last position is sampled"
        digest = mirror.digest_at(end - 1)
        token_id = draw(digest)
        logprobs = foretold_logprobs(digest, token_id, mirror.sampling.num_logprobs)
        return SampledToken(row.sequence_id, row.epoch, token_id, logprobs)
