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
        allowed: the only ids that may be drawn; None allows all.
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
        self.allowed: Ids | None = None
        if sampling.allowed_token_ids is not None:
            self.allowed = _known_ids(sampling.allowed_token_ids, vocab_size)
        self.bias_ids = _known_ids(sampling.logit_bias, vocab_size)
        self.biases = np.array(
            [sampling.logit_bias[token_id] for token_id in self.bias_ids.tolist()], dtype=np.float32
        )
        self.token_counts: TokenCounts | None = None
        if _penalises(sampling):
            repeats = sampling.repetition_penalty != 1.0
            self.token_counts = TokenCounts(prompt if repeats else prompt[:0], output, vocab_size)
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
    """The different ids of prompt and output, and how often each stands in the output.

    Args:
        prompt: token ids, read.
        output: token ids, read.
        vocab_size: V.
    """

    def __init__(
        self, prompt: NDArray[np.int32], output: NDArray[np.int32], vocab_size: int
    ) -> None:
        counts = np.bincount(output, minlength=vocab_size)
        present = counts > 0
        present[prompt] = True
        self._ids = np.flatnonzero(present)
        self._counts = counts[self._ids].astype(np.float32)
        # The ids known from the start are sorted and searched; a dict of them would cost megabytes.
        self._num_sorted = self._num_ids = len(self._ids)
        self._slots: dict[int, int] = {}  # of ids that were added since

    @property
    def ids(self) -> Ids:
        """Each id once, in no order; good until the next `add`."""
        return self._ids[: self._num_ids]

    @property
    def counts(self) -> NDArray[np.float32]:
        """Of each of `ids`, its number of places in the output; 0 if it is the prompt's alone."""
        return self._counts[: self._num_ids]

    def add(self, token_id: int) -> None:
        """Count one more output token."""
        slot = self._slots.get(token_id)
        if slot is None:
            slot = self._slots[token_id] = self._find_or_append(token_id)
        self._counts[slot] += 1.0

    def _find_or_append(self, token_id: int) -> int:
        slot = int(np.searchsorted(self._ids[: self._num_sorted], token_id))
        if slot < self._num_sorted and self._ids[slot] == token_id:
            return slot
        if self._num_ids == len(self._ids):
            room = max(LEAST_ROOM, self._num_ids)
            self._ids = np.concatenate([self._ids, np.zeros(room, self._ids.dtype)])
            self._counts = np.concatenate([self._counts, np.zeros(room, np.float32)])
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
