"""The mirror and the step inputs against a naive model that keeps lists, under random plans."""

from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from atom_lite.attention.protocol import AttentionMetadata
from atom_lite.messages import SamplingParams, SequenceStart, StepPlan, StepRow
from atom_lite.worker.inputs import build_inputs
from atom_lite.worker.sequence_table import SequenceTable

CPU = torch.device("cpu")
SAMPLING = SamplingParams(max_tokens=100)
MAX_MODEL_LEN = 40


@dataclass
class NaiveSequence:
    """What the head knows of a sequence."""

    sequence_id: int
    num_prompt_tokens: int
    tokens: list[int]
    epoch: int = 0
    computed: int = 0
    known: bool = False  # to the stages
    blocks: list[int] = field(default_factory=list)


class NaiveHead:
    """Makes random but valid plans and remembers all that they say."""

    def __init__(self, data, block_size):
        self.data = data
        self.block_size = block_size
        self.sequences = []
        self.next_block = 0

    def draw_int(self, low, high):
        return self.data.draw(st.integers(low, high))

    def plan(self, step_id):
        drops = self.end_or_preempt_some()
        for _ in range(self.draw_int(0, 3)):
            length = self.draw_int(1, 20)
            sequence_id = 1000 * step_id + len(self.sequences)
            tokens = [self.draw_int(0, 99) for _ in range(length)]
            self.sequences.append(NaiveSequence(sequence_id, length, tokens))
        starts, rows, placed = [], [], []
        for sequence in self.sequences:
            if self.data.draw(st.booleans()) and len(sequence.tokens) < MAX_MODEL_LEN:
                if not sequence.known:
                    starts.append(self.start(sequence))
                rows.append(self.row(sequence))
                placed.append(sequence)
        return StepPlan(step_id=step_id, starts=starts, rows=rows, drops=drops), placed

    def end_or_preempt_some(self):
        drops = []
        for sequence in list(self.sequences):
            fate = self.draw_int(0, 9)
            if fate > 1:
                continue
            drops.append((sequence.sequence_id, sequence.epoch))
            if fate == 0:
                self.sequences.remove(sequence)
            else:
                sequence.epoch += 1
                sequence.computed, sequence.known, sequence.blocks = 0, False, []
        return drops

    def start(self, sequence):
        sequence.known = True
        return SequenceStart(
            sequence_id=sequence.sequence_id,
            epoch=sequence.epoch,
            token_ids=list(sequence.tokens),
            num_prompt_tokens=sequence.num_prompt_tokens,
            sampling=SAMPLING,
        )

    def row(self, sequence):
        start = sequence.computed
        token_ids = []
        if start == len(sequence.tokens):  # a decode
            token_ids = [self.draw_int(0, 99)]
            sequence.tokens += token_ids
        num_tokens = self.draw_int(1, len(sequence.tokens) - start)
        sequence.computed += num_tokens
        missing = -(-sequence.computed // self.block_size) - len(sequence.blocks)
        new_blocks = list(range(self.next_block, self.next_block + missing))
        self.next_block += missing
        sequence.blocks += new_blocks
        return StepRow(
            sequence_id=sequence.sequence_id,
            epoch=sequence.epoch,
            start=start,
            num_tokens=num_tokens,
            sample=sequence.computed == len(sequence.tokens),
            new_block_ids=new_blocks,
            token_ids=token_ids,
        )


def assert_inputs_are_right(inputs, plan, placed, block_size):
    query_lens = [row.num_tokens for row in plan.rows]
    context_lens = [row.start + row.num_tokens for row in plan.rows]
    tokens, positions, drawing = [], [], []
    for row, sequence in zip(plan.rows, placed, strict=True):
        span = range(row.start, row.start + row.num_tokens)
        tokens += [sequence.tokens[position] for position in span]
        positions += span
        if row.sample:
            drawing.append((len(tokens) - 1, sequence))
    assert inputs.token_ids.tolist() == tokens
    assert inputs.positions.tolist() == positions
    assert inputs.logits_rows.tolist() == [index for index, _ in drawing]
    assert [
        (row.sequence.sequence_id, row.sequence.epoch, row.output_index) for row in inputs.sampled
    ] == [(s.sequence_id, s.epoch, s.computed - s.num_prompt_tokens) for _, s in drawing]
    metadata = inputs.metadata
    expected = AttentionMetadata.build(
        query_lens, context_lens, [list(s.blocks) for s in placed], block_size
    )
    assert metadata.query_lens == query_lens
    assert metadata.context_lens == context_lens
    assert metadata.slot_mapping.tolist() == expected.slot_mapping.tolist()
    for table, sequence, context in zip(
        metadata.block_tables.tolist(), placed, context_lens, strict=True
    ):
        needed = -(-context // block_size)
        assert table[:needed] == sequence.blocks[:needed]


@settings(max_examples=60, deadline=None)
@given(data=st.data(), block_size=st.sampled_from([1, 3, 16]))
def test_mirror_equals_a_naive_model_under_random_plans(data, block_size):
    head = NaiveHead(data, block_size)
    table = SequenceTable(max_model_len=MAX_MODEL_LEN, block_size=block_size, num_rows=2)
    for step_id in range(data.draw(st.integers(1, 8))):
        plan, placed = head.plan(step_id)
        sequences = table.apply(plan)
        assert len(table) == sum(sequence.known for sequence in head.sequences)
        if plan.rows:
            inputs = build_inputs(plan, sequences, table, CPU)
            assert_inputs_are_right(inputs, plan, placed, block_size)


def make_table(num_rows=2):
    return SequenceTable(max_model_len=64, block_size=16, num_rows=num_rows)


def start_of(sequence_id, *, epoch=0, tokens=(1, 2, 3), num_prompt_tokens=None):
    return SequenceStart(
        sequence_id=sequence_id,
        epoch=epoch,
        token_ids=list(tokens),
        num_prompt_tokens=num_prompt_tokens or len(tokens),
        sampling=SAMPLING,
    )


def plan_of(*, starts=(), rows=(), drops=()):
    return StepPlan(step_id=0, starts=list(starts), rows=list(rows), drops=list(drops))


def test_drop_of_an_old_epoch_or_of_a_stranger_changes_nothing():
    table = make_table()
    table.apply(plan_of(starts=[start_of(7, epoch=3)]))
    table.apply(plan_of(drops=[(7, 2), (8, 0)]))
    assert table[7].epoch == 3


def test_newer_epoch_replaces_the_older_one_and_starts_with_no_blocks():
    table = make_table(num_rows=1)
    row = StepRow(sequence_id=7, epoch=0, start=0, num_tokens=3, sample=True, new_block_ids=[5])
    table.apply(plan_of(starts=[start_of(7)], rows=[row]))
    table.apply(plan_of(starts=[start_of(7, epoch=1, tokens=(1, 2, 3, 4), num_prompt_tokens=3)]))
    assert len(table) == 1
    assert (table[7].epoch, table[7].num_blocks, table[7].num_tokens) == (1, 0, 4)
    assert len(table.tokens) == 1  # the row was reused


def test_output_index_goes_on_after_preemption():
    table = make_table()
    resumed = start_of(7, epoch=1, tokens=(1, 2, 3, 50, 51), num_prompt_tokens=3)
    row = StepRow(sequence_id=7, epoch=1, start=0, num_tokens=5, sample=True, new_block_ids=[0])
    plan = plan_of(starts=[resumed], rows=[row])
    inputs = build_inputs(plan, table.apply(plan), table, CPU)
    assert inputs.sampled[0].output_index == 2


@pytest.mark.parametrize(
    "row",
    [
        StepRow(sequence_id=7, epoch=1, start=0, num_tokens=3, sample=True, new_block_ids=[0]),
        StepRow(sequence_id=7, epoch=0, start=0, num_tokens=4, sample=True, new_block_ids=[0]),
        StepRow(sequence_id=7, epoch=0, start=0, num_tokens=3, sample=True),
    ],
    ids=["another epoch", "tokens that nobody sent", "no block"],
)
def test_plan_that_contradicts_the_mirror_is_caught(row):
    table = make_table()
    with pytest.raises(AssertionError):
        table.apply(plan_of(starts=[start_of(7)], rows=[row]))


def test_table_grows_when_more_sequences_live_than_it_had_rows_for():
    table = make_table(num_rows=1)
    table.apply(plan_of(starts=[start_of(n, tokens=(n, n + 1)) for n in range(5)]))
    assert [table.tokens[table[n].row, :2].tolist() for n in range(5)] == [
        [n, n + 1] for n in range(5)
    ]
    assert len({table[n].row for n in range(5)}) == 5
