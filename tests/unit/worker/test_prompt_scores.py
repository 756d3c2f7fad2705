"""Prompt tokens are scored in any cut of the prompt, in memory for a few rows at a time."""

import torch

from atom_lite.messages import SamplingParams, SequenceStart, StepPlan, StepRow
from atom_lite.worker.prompt_scores import ROWS_AT_ONCE, prompt_spans, score_spans
from atom_lite.worker.sequence_table import SequenceTable
from tests.fakes.logprob_reader import read

VOCAB = 90
HEAD = torch.randn(8, VOCAB, generator=torch.Generator().manual_seed(2))


def start(sequence_id, token_ids, num_prompt_tokens, count):
    return SequenceStart(
        sequence_id=sequence_id,
        epoch=3,
        token_ids=token_ids,
        num_prompt_tokens=num_prompt_tokens,
        sampling=SamplingParams(max_tokens=9, num_prompt_logprobs=count),
    )


def row(sequence_id, first, num_tokens, *, token_ids=()):
    return StepRow(
        sequence_id=sequence_id,
        epoch=3,
        start=first,
        num_tokens=num_tokens,
        sample=False,
        new_block_ids=list(range(63)) if first == 0 else [],
        token_ids=list(token_ids),
    )


class Stage:
    """Mirrors plans; its hidden states are random, its head a matrix."""

    def __init__(self):
        self.table = SequenceTable(max_model_len=1000, block_size=16, num_rows=4)
        self.most_rows = 0

    def to_logits(self, hidden):
        self.most_rows = max(self.most_rows, len(hidden))
        return hidden @ HEAD

    def run(self, rows, starts=()):
        plan = StepPlan(step_id=0, starts=list(starts), rows=list(rows))
        spans = prompt_spans(plan, self.table.apply(plan))
        num_tokens = sum(r.num_tokens for r in rows)
        hidden = torch.randn(num_tokens, 8, generator=torch.Generator().manual_seed(5))
        return hidden, score_spans(spans, self.table, hidden, self.to_logits)


def test_a_chunk_scores_the_tokens_that_follow_its_own():
    stage = Stage()
    prompt = [(7 * i) % VOCAB for i in range(20)]
    hidden, [part] = stage.run([row(1, 0, 8)], [start(1, prompt, 20, 2)])
    assert (part.sequence_id, part.epoch, part.start, len(part.positions)) == (1, 3, 1, 8)
    expected = (hidden.double() @ HEAD.double()).log_softmax(1)
    for index, position in enumerate(map(read, part.positions)):
        assert position.token_id == prompt[index + 1]
        assert abs(position.logprob - expected[index, prompt[index + 1]].item()) < 1e-5
        assert len(position.likeliest) == 2
    _, [part] = stage.run([row(1, 8, 12)])
    assert (part.start, len(part.positions)) == (9, 11)  # nothing is known of what comes after


def test_rows_of_one_step_get_their_own_scores():
    stage = Stage()
    starts = [start(1, [1, 2, 3, 4], 4, 0), start(2, [5, 6, 7], 3, None), start(3, [8, 9], 2, 4)]
    hidden, parts = stage.run([row(1, 0, 4), row(2, 0, 3), row(3, 0, 2)], starts)
    assert [(p.sequence_id, p.start, len(p.positions)) for p in parts] == [(1, 1, 3), (3, 1, 1)]
    expected = (hidden.double() @ HEAD.double()).log_softmax(1)
    last = read(parts[1].positions[0])
    assert last.token_id == 9 and abs(last.logprob - expected[7, 9].item()) < 1e-5


def test_neither_output_nor_a_prompt_of_one_token_is_scored():
    stage = Stage()
    resumed = start(1, [1, 2, 3, 4, 5], 2, 1)  # 3 output tokens are computed again
    _, parts = stage.run([row(1, 0, 5), row(2, 0, 1)], [resumed, start(2, [9], 1, 1)])
    assert [(p.sequence_id, p.start, len(p.positions)) for p in parts] == [(1, 1, 1)]
    _, parts = stage.run([row(1, 5, 1, token_ids=[6])])
    assert parts == []


def test_logits_are_made_for_a_few_rows_at_a_time():
    stage = Stage()
    starts = [start(1, [1] * 500, 500, 1), start(2, [2] * 300, 300, 0)]
    _, parts = stage.run([row(1, 0, 500), row(2, 0, 300)], starts)
    assert [len(part.positions) for part in parts] == [499, 299]
    assert stage.most_rows == ROWS_AT_ONCE
