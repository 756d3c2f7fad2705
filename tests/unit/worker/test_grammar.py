"""Grammars of the last stage without a model: logits are made up, tokens chosen by hand."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import torch

from atom_lite.messages import Grammar, SamplingParams, SequenceStart, StepPlan, StepRow
from atom_lite.worker import grammar_filler, grammar_loader
from atom_lite.worker.grammar import GrammarMasks
from atom_lite.worker.grammar_loader import CachedGrammar, GrammarLoader
from atom_lite.worker.inputs import SampledRow
from atom_lite.worker.sampler import Draw, Sampler
from atom_lite.worker.sequence_table import SequenceTable
from atom_lite.worker.token_masks import full_masks
from tests.fakes.grammars import BACKENDS, letters_vocabulary, make_grammar

V = 199
EOS = (2, 3)
VOCABULARY = letters_vocabulary(V, EOS)
PROMPT = [20, 21, 22]
YES_OR_NO = {
    backend: make_grammar(VOCABULARY, "choice", ["yes", "no"], backend=backend)
    for backend in BACKENDS
}
WORDS = {piece.decode(): i for i, piece in enumerate(VOCABULARY.pieces) if piece}
YES, NO, Y, E, S = (WORDS[text] for text in ("yes", "no", "y", "e", "s"))


@pytest.fixture(scope="module")
def loader():
    return GrammarLoader(lambda: VOCABULARY)


class Stage:
    """The mirror and the grammars of a last stage, driven by hand."""

    def __init__(self, loader, **options):
        self.table = SequenceTable(max_model_len=64, block_size=4, num_rows=8)
        self.masks = GrammarMasks(V, loader, **options)
        self.step_id = 0
        self.epochs = {}

    def step(self, *, starts=(), decodes=None, drops=()):
        """Run a step of whole prompts and decodes of {sequence: last token}.

        Returns what each row may draw, a set of ids, or its error.
        """
        rows = [self.decode_row(key, token) for key, token in (decodes or {}).items()]
        rows += [
            StepRow(
                sequence_id=start.sequence_id,
                epoch=start.epoch,
                start=0,
                num_tokens=len(start.token_ids),
                sample=True,
                new_block_ids=list(range(16)),
            )
            for start in starts
        ]
        self.step_id += 1
        plan = StepPlan(step_id=self.step_id, starts=list(starts), rows=rows, drops=list(drops))
        sequences = self.table.apply(plan)
        self.masks.follow(plan)
        for start in starts:
            self.epochs[start.sequence_id] = start.epoch
        sampled = [
            SampledRow(sequence, row.start + row.num_tokens - sequence.num_prompt_tokens)
            for sequence, row in zip(sequences, rows, strict=True)
        ]
        masks = self.masks.begin(sampled, self.table)
        self.logits = logits = torch.zeros(len(rows), V)
        errors = {} if masks is None else masks.apply(logits)
        self.statuses = [error.status for error in errors.values()]
        return [
            str(errors[index])
            if index in errors
            else set(np.flatnonzero(logits[index].isfinite().numpy()).tolist())
            for index in range(len(rows))
        ]

    def decode_row(self, key, token):
        sequence = self.table[key]
        return StepRow(
            sequence_id=key,
            epoch=self.epochs[key],
            start=sequence.num_tokens,
            num_tokens=1,
            sample=True,
            token_ids=[token],
        )


def start_of(key, grammar, *, epoch=0, output=()):
    return SequenceStart(
        sequence_id=key,
        epoch=epoch,
        token_ids=[*PROMPT, *output],
        num_prompt_tokens=len(PROMPT),
        sampling=SamplingParams(max_tokens=9),
        grammar=grammar,
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_only_tokens_that_the_grammar_allows_can_come(loader, backend):
    stage = Stage(loader)
    first = stage.step(starts=[start_of(1, YES_OR_NO[backend])])
    assert first == [{YES, NO, Y, WORDS["n"]}]
    assert stage.step(decodes={1: Y}) == [{E}]
    assert stage.step(decodes={1: E}) == [{S}]
    assert stage.step(decodes={1: S}) == [set(EOS)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_complete_grammar_ends_before_min_tokens(loader, backend, temperature):
    stage = Stage(loader)
    stage.step(starts=[start_of(1, YES_OR_NO[backend])])
    stage.step(decodes={1: YES})
    draw = Draw(SamplingParams(max_tokens=9, min_tokens=5, temperature=temperature), 1, None)
    sampler = Sampler(vocab_size=V, eos_token_ids=EOS)
    assert sampler.sample(stage.logits, [draw])[0] in EOS


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_but_eos_comes_after_eos(loader, backend):
    stage = Stage(loader)
    stage.step(starts=[start_of(1, YES_OR_NO[backend])])
    stage.step(decodes={1: YES})
    assert stage.step(decodes={1: EOS[1]}) == [set(EOS)]
    assert stage.step(decodes={1: EOS[0]}) == [set(EOS)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_resumed_sequence_goes_on_where_it_was(loader, backend):
    stage = Stage(loader)
    stage.step(starts=[start_of(1, YES_OR_NO[backend])])
    stage.step(decodes={1: Y})
    assert stage.step(decodes={1: E}) == [{S}]
    resumed = start_of(1, YES_OR_NO[backend], epoch=1, output=[Y, E])
    assert stage.step(starts=[resumed], drops=[(1, 0)]) == [{S}]
    assert stage.step(decodes={1: S}) == [set(EOS)]


def test_rows_of_both_backends_and_of_none_share_a_step(loader):
    stage = Stage(loader)
    starts = [start_of(key, grammar) for key, grammar in enumerate([*YES_OR_NO.values(), None])]
    allowed = stage.step(starts=starts)
    assert allowed[0] == allowed[1] == {YES, NO, Y, WORDS["n"]}
    assert allowed[2] == set(range(V))
    assert stage.step(decodes={1: YES, 2: 50, 0: Y}) == [set(EOS), set(range(V)), {E}]


def test_a_step_without_grammars_makes_no_masks(loader):
    stage = Stage(loader)
    assert stage.step(starts=[start_of(1, None)]) == [set(range(V))]
    assert stage.masks.begin([SampledRow(stage.table[1], 0)], stage.table) is None


def test_a_dropped_sequence_takes_its_matcher_along(loader):
    stage = Stage(loader)
    stage.step(starts=[start_of(1, YES_OR_NO["xgrammar"])])
    stage.step(drops=[(1, 7)])  # of another epoch
    assert len(stage.masks) == 1
    stage.step(drops=[(1, 0)])
    assert len(stage.masks) == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_refused_token_ends_its_sequence_and_no_other(loader, backend):
    stage = Stage(loader)
    stage.step(starts=[start_of(key, YES_OR_NO[backend]) for key in (1, 2)])
    broken, other = stage.step(decodes={1: NO + 1, 2: Y})
    assert "cannot follow its grammar" in broken
    assert stage.statuses == [500]
    assert other == {E}
    assert stage.step(drops=[(1, 0)], decodes={2: E}) == [{S}]


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar(key="a", backend="xgrammar", compiled=b"{}"),
        Grammar(key="b", backend="xgrammar", compiled=b"\xff"),
        Grammar(key="c", backend="guidance", compiled=b"start: ("),
    ],
    ids=["no grammar", "no text", "no Lark"],
)
def test_a_grammar_that_cannot_be_read_ends_its_sequence_every_time(loader, grammar):
    for _ in range(2):
        stage = Stage(loader)
        broken, other = stage.step(
            starts=[start_of(1, grammar), start_of(2, YES_OR_NO["guidance"])]
        )
        assert "grammar" in broken
        assert other == {YES, NO, Y, WORDS["n"]}


def test_without_a_vocabulary_each_grammar_fails_and_says_so():
    (error,) = Stage(GrammarLoader(None)).step(starts=[start_of(1, YES_OR_NO["xgrammar"])])
    assert "without a vocabulary" in error


def test_a_vocabulary_that_cannot_be_read_does_not_keep_the_stage_from_starting():
    def read():
        raise OSError("no such file")

    loader = GrammarLoader(read)
    loader.wait()
    (error,) = Stage(loader).step(starts=[start_of(1, YES_OR_NO["xgrammar"])])
    assert "no such file" in error


def test_a_dead_end_of_the_vocabulary_is_an_error_and_no_empty_mask(loader):
    grammar = make_grammar(VOCABULARY, "choice", ["y\xe9", "y\xeb"], backend="xgrammar")
    stage = Stage(loader)
    assert stage.step(starts=[start_of(1, grammar)]) == [{Y}]
    (error,) = stage.step(decodes={1: Y})
    assert "no token" in error
    assert stage.statuses == [400]


def test_a_library_that_gives_up_for_want_of_tokens_blames_the_request(loader):
    grammar = make_grammar(VOCABULARY, "regex", "y[\u00e9-\u00eb]", backend="guidance")
    stage = Stage(loader)
    assert stage.step(starts=[start_of(1, grammar)]) == [{Y}]
    (error,) = stage.step(decodes={1: Y})
    assert "gives the grammar up" in error
    assert stage.statuses == [400]


class SlowMatcher:
    """Takes as much CPU time for a mask as it is told, and allows everything."""

    num_bytes = 1

    def __init__(self, seconds):
        self.seconds = seconds
        self.threads = set()

    def matcher(self):
        return self

    def accept(self, token_id):
        pass

    def fill(self, masks, row):
        self.threads.add(threading.current_thread().name)
        burn(self.seconds)
        masks[row] = -1


class StuckMatcher(SlowMatcher):
    """Burns CPU time until it is let go."""

    def __init__(self):
        super().__init__(0.0)
        self.is_let_go = threading.Event()
        self.has_ended = threading.Event()

    def fill(self, masks, row):
        while not self.is_let_go.is_set():
            burn(0.001)
        masks[row] = 0
        self.has_ended.set()


def burn(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_a_grammar_whose_masks_take_too_long_is_refused_from_then_on(loader):
    slow = SlowMatcher(0.0)
    loader._cache["xgrammar", "slow"] = CachedGrammar(template=slow)
    grammar = Grammar(key="slow", backend="xgrammar", compiled=b"")
    stage = Stage(loader, mask_seconds=0.02)
    stage.step(starts=[start_of(key, grammar) for key in (1, 2)])
    slow.seconds = 0.03
    errors = stage.step(decodes={1: 20, 2: 20})
    assert all("0.02 s are given" in error for error in errors)
    assert stage.statuses == [400, 400]
    slow.seconds = 0.0
    assert "0.02 s are given" in stage.step(starts=[start_of(3, grammar)])[0]
    assert len(slow.threads) == 1
    assert threading.current_thread().name not in slow.threads


def test_a_mask_that_does_not_end_fails_its_row_while_the_others_go_on(loader):
    stuck = StuckMatcher()
    loader._cache["xgrammar", "stuck"] = CachedGrammar(template=stuck)
    bad = Grammar(key="stuck", backend="xgrammar", compiled=b"")
    stage = Stage(loader, mask_seconds=0.05)
    starts = [start_of(key, bad if key == 2 else YES_OR_NO["xgrammar"]) for key in (1, 2, 3)]
    before, error, after = stage.step(starts=starts)
    assert before == after == {YES, NO, Y, WORDS["n"]}
    assert "0.05 s are given" in error
    assert stage.statuses == [400]
    assert stage.step(drops=[(2, 0)], decodes={1: Y, 3: YES}) == [{E}, set(EOS)]
    stuck.is_let_go.set()
    assert stuck.has_ended.wait(20)
    assert stage.step(decodes={1: E, 3: EOS[0]}) == [{S}, set(EOS)]
    assert "0.05 s are given" in stage.step(starts=[start_of(4, bad)])[0]


def test_a_grammar_that_is_always_slow_uses_up_what_its_sequence_is_given(loader, monkeypatch):
    monkeypatch.setattr(grammar_filler, "SPARE_SECONDS", 0.03)
    monkeypatch.setattr(grammar_filler, "TOKEN_SECONDS", 0.001)
    slow = SlowMatcher(0.02)
    loader._cache["xgrammar", "always slow"] = CachedGrammar(template=slow)
    grammar = Grammar(key="always slow", backend="xgrammar", compiled=b"")
    stage = Stage(loader, mask_seconds=10.0)
    assert stage.step(starts=[start_of(1, grammar)]) == [set(range(V))]
    (error,) = stage.step(decodes={1: 20})
    assert "for 2 tokens" in error
    assert stage.statuses == [400]


def test_the_cache_of_grammars_is_bounded(loader, monkeypatch):
    monkeypatch.setattr(grammar_loader, "MAX_CACHED", 3)
    own = GrammarLoader(lambda: VOCABULARY)
    grammars = [make_grammar(VOCABULARY, "choice", [word]) for word in ("yes", "no", "y", "n")]
    for grammar in grammars:
        own.follower(grammar, []).result()
    assert [key for _, key in own._cache] == [grammar.key for grammar in grammars[1:]]


def test_the_cache_counts_what_grammars_have_grown_to(monkeypatch):
    own = GrammarLoader(lambda: VOCABULARY)
    grammars = [make_grammar(VOCABULARY, "choice", [word]) for word in ("yes", "no")]
    follower = own.follower(grammars[0], []).result()
    before = follower.grammar.num_bytes
    follower.fill(full_masks(1, V), 0)
    assert follower.grammar.num_bytes > before > 0
    monkeypatch.setattr(grammar_loader, "MAX_CACHED_BYTES", follower.grammar.num_bytes)
    own.follower(grammars[1], []).result()
    assert [key for _, key in own._cache] == [grammars[1].key]
