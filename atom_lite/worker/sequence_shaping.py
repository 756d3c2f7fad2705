"""What one sequence's sampling options ask of its logits, kept up to date with its tokens.

Why it exists: penalties, bias, allowed ids and bad words speak of ids, and most of it never changes
while a sequence lives. So it is turned into arrays once, and a step only adds the token that it
brought: the cost of a step does not grow with the prompt's length, only with the number of
different ids in it (and not even with that where repetition_penalty is off).

Runs on the last stage. The mirrored sequence keeps its SequenceShaping (`current_shaping`), so
there is nothing to clean up: a preemption, an abort or a newer epoch replaces the mirror's entry,
and what takes its place counts again from the token ids that the plan brought. A drawn token is
counted when it comes back in a plan, never when it is drawn. Must not see logits: that is
`logit_shaping`. Ids outside the vocabulary are the frontend's to refuse; here they have no effect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from atom_lite.messages import SamplingParams
    from atom_lite.worker.sequence_table import MirroredSequence

    Ids = NDArray[np.int64]

LEAST_ROOM = 64  # ids


def shapes_logits(sampling: SamplingParams) -> bool:
    """Whether any option is set that a SequenceShaping serves."""
    return bool(
        _penalises(sampling)
        or sampling.logit_bias
        or sampling.allowed_token_ids is not None
        or sampling.bad_words
    )


def current_shaping(
    sequence: MirroredSequence, token_ids: NDArray[np.int32], *, vocab_size: int
) -> SequenceShaping | None:
    """The sequence's shaping, counting all of its tokens; None where its options ask for none.

    Args:
        sequence: keeps the shaping that the first call makes.
        token_ids: its prompt and output so far; read, a part of it kept until the next call.
        vocab_size: V.
    """
    if not shapes_logits(sequence.sampling):
        return None
    prompt = token_ids[: sequence.num_prompt_tokens]
    output = token_ids[sequence.num_prompt_tokens :]
    if sequence.shaping is None:
        sequence.shaping = SequenceShaping(sequence.sampling, prompt, output, vocab_size=vocab_size)
    else:
        sequence.shaping.catch_up(output)
    return sequence.shaping


class SequenceShaping:
    """The options of one sequence as arrays.

    Args:
        sampling: the options; kept.
        prompt: token ids, read.
        output: token ids so far (more than none after a preemption); kept until `catch_up`.
        vocab_size: V.

    Attributes:
        allowed: the only ids that may be drawn; none at all is no restriction.
        bias_ids: ids whose logit is raised or lowered.
        biases: float32, by how much each.
        token_counts: what the penalties need; None where none is set.
    """

    def __init__(
        self,
        sampling: SamplingParams,
        prompt: NDArray[np.int32],
        output: NDArray[np.int32],
        *,
        vocab_size: int,
    ) -> None:
        self.sampling = sampling
        self.allowed = _known_ids(sampling.allowed_token_ids or (), vocab_size)
        self.bias_ids = _known_ids(sampling.logit_bias, vocab_size)
        self.biases = np.array(
            [sampling.logit_bias[token_id] for token_id in self.bias_ids.tolist()], dtype=np.float32
        )
        self.token_counts: TokenCounts | None = None
        if _penalises(sampling):
            self.token_counts = TokenCounts(sampling, prompt, output, vocab_size)
        self._bad_words = BadWords(sampling.bad_words, vocab_size)
        self._output = output

    def catch_up(self, output: NDArray[np.int32]) -> None:
        """Count what is new in the output, of which this has seen a beginning."""
        if self.token_counts is not None:
            for token_id in output[len(self._output) :].tolist():
                self.token_counts.add(token_id)
        self._output = output

    def bad_ids(self) -> Ids:
        """Ids that would complete a bad word now; one may come twice."""
        return self._bad_words.completing(self._output)


class TokenCounts:
    """The different ids that the penalties concern, and what each loses to those on the output.

    Args:
        sampling: has a penalty.
        prompt: token ids, read.
        output: token ids, read.
        vocab_size: V.
    """

    def __init__(
        self,
        sampling: SamplingParams,
        prompt: NDArray[np.int32],
        output: NDArray[np.int32],
        vocab_size: int,
    ) -> None:
        self._presence = sampling.presence_penalty
        self._frequency = sampling.frequency_penalty
        counts = np.bincount(output, minlength=vocab_size)
        concerned = counts > 0
        if sampling.repetition_penalty != 1.0:
            concerned[prompt] = True
        self._ids = np.flatnonzero(concerned)
        # The ids known from the start are sorted and searched; a dict of them would cost megabytes.
        self._num_sorted = self._num_ids = len(self._ids)
        self._slots: dict[int, int] = {}  # of ids that were added since
        self._counts = counts[self._ids]
        self._losses = (
            self._frequency * self._counts + self._presence * (self._counts > 0)
        ).astype(np.float32)

    @property
    def ids(self) -> Ids:
        """Each id once, in no order; good until the next `add`."""
        return self._ids[: self._num_ids]

    @property
    def losses(self) -> NDArray[np.float32]:
        """What each of `ids` loses to presence_penalty and frequency_penalty."""
        return self._losses[: self._num_ids]

    def add(self, token_id: int) -> None:
        """Count one more output token."""
        slot = self._slots.get(token_id)
        if slot is None:
            slot = self._slots[token_id] = self._find_or_append(token_id)
        self._counts[slot] += 1
        self._losses[slot] = self._frequency * self._counts[slot] + self._presence

    def _find_or_append(self, token_id: int) -> int:
        slot = int(np.searchsorted(self._ids[: self._num_sorted], token_id))
        if slot < self._num_sorted and self._ids[slot] == token_id:
            return slot
        if self._num_ids == len(self._ids):
            self._ids, self._counts, self._losses = (
                np.concatenate([column, np.zeros(max(LEAST_ROOM, len(column)), column.dtype)])
                for column in (self._ids, self._counts, self._losses)
            )
        self._ids[self._num_ids] = token_id
        self._num_ids += 1
        return self._num_ids - 1


class BadWords:
    """Token sequences that must not come in the output (the prompt does not count, as in vLLM).

    A word's last id is forbidden while the output ends with the ids before it. Words of several ids
    are looked up by the id before the last, so that a long list costs a step nothing but one look.

    Args:
        words: token sequences; one with an id outside the vocabulary can never come.
        vocab_size: V.
    """

    def __init__(self, words: Iterable[tuple[int, ...]], vocab_size: int) -> None:
        self._single = _known_ids((word[0] for word in words if len(word) == 1), vocab_size)
        self._by_id_before: dict[int, list[tuple[tuple[int, ...], int]]] = {}
        for word in words:
            if len(word) > 1 and 0 <= word[-1] < vocab_size:
                self._by_id_before.setdefault(word[-2], []).append((word[:-1], word[-1]))

    def completing(self, output: NDArray[np.int32]) -> Ids:
        """The ids that would complete a word after `output`; one may come twice."""
        if not self._by_id_before or not len(output):
            return self._single
        words = self._by_id_before.get(int(output[-1]), [])
        ids = [last for head, last in words if tuple(output[-len(head) :].tolist()) == head]
        return (
            np.concatenate([self._single, np.array(ids, dtype=np.int64)]) if ids else self._single
        )


def _penalises(sampling: SamplingParams) -> bool:
    return bool(
        sampling.presence_penalty
        or sampling.frequency_penalty
        or sampling.repetition_penalty != 1.0
    )


def _known_ids(ids: Iterable[int], vocab_size: int) -> Ids:
    """Those of the ids that are in the vocabulary, each once."""
    known = [token_id for token_id in ids if 0 <= token_id < vocab_size]
    return np.unique(np.array(known, dtype=np.int64))
