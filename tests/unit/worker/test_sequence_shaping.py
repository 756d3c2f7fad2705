import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from atom_lite.messages import SequenceStart, StepPlan, StepRow
from atom_lite.worker.sequence_shaping import (
    BadWords,
    SequenceShaping,
    TokenCounts,
    current_shaping,
    shapes_logits,
)
from atom_lite.worker.sequence_table import SequenceTable
from tests.unit.worker.sampling_reference import params

VOCAB = 300


def array(ids):
    return np.array(ids, dtype=np.int32)


def losses_of(tokens):
    assert len(set(tokens.ids.tolist())) == len(tokens.ids)
    return dict(zip(tokens.ids.tolist(), tokens.losses.tolist(), strict=True))


@given(
    prompt=st.lists(st.integers(0, VOCAB - 1)),
    output=st.lists(st.integers(0, VOCAB - 1), max_size=200),
    known=st.integers(0, 200),
)
def test_tokens_counted_one_by_one_or_at_once_are_the_same(prompt, output, known):
    sampling = params(repetition_penalty=1.1, frequency_penalty=1.0, presence_penalty=0.5)
    tokens = TokenCounts(sampling, array(prompt), array(output[:known]), VOCAB)
    for token_id in output[known:]:
        tokens.add(token_id)
    of_output = {token_id: output.count(token_id) + 0.5 for token_id in output}
    assert losses_of(tokens) == dict.fromkeys(prompt, 0.0) | of_output


def test_prompt_is_looked_at_only_for_the_repetition_penalty():
    prompt, output = array([1, 2, 2]), array([2, 9])
    both = SequenceShaping(
        params(repetition_penalty=1.1, frequency_penalty=1.0), prompt, output, vocab_size=VOCAB
    )
    assert losses_of(both.token_counts) == {1: 0.0, 2: 1.0, 9: 1.0}
    alone = SequenceShaping(params(presence_penalty=0.5), prompt, output, vocab_size=VOCAB)
    assert losses_of(alone.token_counts) == {2: 0.5, 9: 0.5}


def test_bad_word_is_completed_by_the_outputs_tail():
    words = BadWords([(5,), (7, 8), (6, 7, 9), (6, 7, 10), (7, 7, 11), (), (4, VOCAB)], VOCAB)
    assert words.completing(array([])).tolist() == [5]
    assert words.completing(array([7])).tolist() == [5, 8]
    assert words.completing(array([6, 7])).tolist() == [5, 8, 9, 10]
    assert words.completing(array([7, 6])).tolist() == [5]
    assert words.completing(array([1, 7, 7])).tolist() == [5, 8, 11]
    assert words.completing(array([4])).tolist() == [5]


def test_ids_outside_the_vocabulary_have_no_effect():
    sampling = params(logit_bias={-1: 1.0, 7: 2.0, VOCAB: 3.0}, allowed_token_ids=(VOCAB, 9, -5, 9))
    shaping = SequenceShaping(sampling, array([1]), array([]), vocab_size=VOCAB)
    assert (shaping.bias_ids.tolist(), shaping.biases.tolist()) == ([7], [2.0])
    assert shaping.allowed.tolist() == [9]


def test_neutral_options_ask_for_no_shaping():
    assert not shapes_logits(params(temperature=0.4, top_k=5, min_tokens=9))
    for option in (
        {"presence_penalty": -0.1},
        {"frequency_penalty": 0.1},
        {"repetition_penalty": 0.9},
        {"logit_bias": {1: 0.0}},
        {"allowed_token_ids": ()},
        {"bad_words": ((1,),)},
    ):
        assert shapes_logits(params(**option))


class Mirror:
    """A sequence of three prompt tokens in a table that is told what a scheduler would tell it."""

    def __init__(self):
        self.table = SequenceTable(max_model_len=40, block_size=40, num_rows=1)
        self.sampling = params(repetition_penalty=1.2, frequency_penalty=1.0)

    def start(self, token_ids, *, epoch):
        start = SequenceStart(
            sequence_id=1,
            epoch=epoch,
            token_ids=token_ids,
            num_prompt_tokens=3,
            sampling=self.sampling,
        )
        return self._run(epoch, 0, [], len(token_ids), starts=[start], new_block_ids=[0])

    def decode(self, position, token_id, *, epoch):
        return self._run(epoch, position, [token_id], 1)

    def _run(self, epoch, start, token_ids, num_tokens, *, starts=(), new_block_ids=()):
        row = StepRow(
            sequence_id=1,
            epoch=epoch,
            start=start,
            num_tokens=num_tokens,
            sample=True,
            new_block_ids=list(new_block_ids),
            token_ids=token_ids,
        )
        (sequence,) = self.table.apply(StepPlan(step_id=1, starts=list(starts), rows=[row]))
        shaping = current_shaping(sequence, self.table.token_ids(sequence), vocab_size=VOCAB)
        return losses_of(shaping.token_counts)


def test_tokens_are_counted_as_plans_bring_them_and_anew_in_a_later_epoch():
    mirror = Mirror()
    assert mirror.start([5, 6, 7], epoch=0) == {5: 0, 6: 0, 7: 0}
    assert mirror.decode(3, 6, epoch=0) == {5: 0, 6: 1, 7: 0}
    assert mirror.decode(4, 90, epoch=0) == {5: 0, 6: 1, 7: 0, 90: 1}
    # Preempted: the token drawn last was never delivered, another one may be drawn in its place.
    assert mirror.start([5, 6, 7, 6], epoch=1) == {5: 0, 6: 1, 7: 0}
    assert mirror.decode(4, 91, epoch=1) == {5: 0, 6: 1, 7: 0, 91: 1}


def test_plain_sequence_keeps_nothing():
    mirror = Mirror()
    mirror.start([5, 6, 7], epoch=0)
    sequence = mirror.table[1]
    sequence.shaping, sequence.sampling = None, params()
    assert current_shaping(sequence, mirror.table.token_ids(sequence), vocab_size=VOCAB) is None
    assert sequence.shaping is None
