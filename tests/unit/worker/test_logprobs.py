"""Log probabilities are compared with torch's log_softmax in float64 and a full stable sort."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from atom_lite.messages import SamplingParams
from atom_lite.worker.logprobs import KeptLogits, score_tokens
from tests.fakes.logprob_reader import read


def random_logits(num_rows, vocab_size, *, seed=0, spread=3.0, by_columns=False):
    logits = torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(seed))
    logits *= spread
    # the head may leave its logits column by column
    return logits.t().contiguous().t() if by_columns else logits


def assert_scores(logits, token_ids, counts, scores, *, tolerance=1e-5):
    expected = logits.double().log_softmax(1)
    for row, (token_id, count, score) in enumerate(zip(token_ids, counts, scores, strict=True)):
        position = read(score)
        order = logits[row].sort(descending=True, stable=True).indices.tolist()
        wanted = min(count, len(order))
        assert position.token_id == token_id
        assert position.logprob == pytest.approx(expected[row, token_id].item(), abs=tolerance)
        assert position.rank == 1 + order.index(token_id)
        assert [i for i, _ in position.likeliest] == order[:wanted]
        values = [value for _, value in position.likeliest]
        assert values == pytest.approx(expected[row, order[:wanted]].tolist(), abs=tolerance)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.integers(0, 10**6), st.sampled_from([0, 1, 2, 5, 20, 70, 10**6])),
        min_size=1,
        max_size=20,
    ),
    vocab_size=st.sampled_from([3, 64, 100, 2000]),
    spread=st.sampled_from([0.0, 1.0, 20.0]),
    grid=st.booleans(),
    by_columns=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_scores_are_those_of_a_softmax_and_a_stable_sort(
    rows, vocab_size, spread, grid, by_columns, seed
):
    logits = random_logits(len(rows), vocab_size, seed=seed, spread=spread, by_columns=by_columns)
    if grid:
        logits.round_()  # many exact ties: the lower id goes first
    before = logits.clone()
    token_ids = [token % vocab_size for token, _ in rows]
    counts = [count for _, count in rows]
    assert_scores(logits, token_ids, counts, score_tokens(logits, token_ids, counts))
    assert torch.equal(logits, before)


@pytest.mark.parametrize("by_columns", [False, True])
def test_a_real_vocabulary_is_scored_to_a_millionth(by_columns):
    logits = random_logits(6, 49152, spread=4.0, by_columns=by_columns)
    token_ids, counts = [0, 49151, 7, 30000, 64, 63], [20, 0, 5, 768, 769, 1]
    scores = score_tokens(logits, token_ids, counts)
    assert_scores(logits, token_ids, counts, scores, tolerance=3e-6)


def test_ids_that_the_model_itself_excludes_are_not_among_the_likeliest():
    logits = torch.full((2, 200), -torch.inf)
    logits[0, [5, 150]] = torch.tensor([1.0, 2.0])
    logits[1, 9] = 3.0
    first, second = (read(score) for score in score_tokens(logits, [5, 0], [4, 4]))
    assert [i for i, _ in first.likeliest] == [150, 5] and first.rank == 2
    assert second.likeliest == [(9, 0.0)]
    assert second.logprob == -math.inf and second.rank == 2


def test_a_broken_model_gives_numbers_all_the_same():
    logits = random_logits(3, 200)
    logits[0, 3], logits[1, 4], logits[2, :] = math.nan, math.inf, -math.inf
    scores = [read(score) for score in score_tokens(logits, [3, 4, 7], [3, 3, 3])]
    values = [v for s in scores for v in (s.logprob, *(value for _, value in s.likeliest))]
    assert not any(math.isnan(value) for value in values)
    assert scores[1].rank == 1 and scores[1].logprob == 0.0
    assert scores[2].logprob == pytest.approx(-math.log(200))


def params(num_logprobs=None):
    return SamplingParams(max_tokens=1, num_logprobs=num_logprobs)


def test_nothing_is_kept_where_no_row_reports():
    assert KeptLogits.of(random_logits(3, 100), [params()] * 3) is None


@pytest.mark.parametrize("by_columns", [False, True])
@pytest.mark.parametrize("counts", [[5, None, 0, 2], [1, 2, 3, 4], [None, None, 9, None]])
def test_reports_are_of_the_logits_before_they_were_changed(counts, by_columns):
    logits = random_logits(4, 300, by_columns=by_columns)
    raw = logits.clone()
    kept = KeptLogits.of(logits, [params(count) for count in counts])
    logits.fill_(-math.inf)
    token_ids = [12, 0, 299, 64]
    reports = kept.report(token_ids)
    rows = [row for row, count in enumerate(counts) if count is not None]
    assert list(reports) == rows
    assert_scores(
        raw[rows],
        [token_ids[row] for row in rows],
        [counts[row] for row in rows],
        [reports[row] for row in rows],
    )
