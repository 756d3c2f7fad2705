"""The study of what sampling options cost, against a server in this process."""

import asyncio
import dataclasses
import json

import pytest

from benchmarks.paired import Ratio
from benchmarks.sampling_arms import ARMS, PLAIN, arms_named
from benchmarks.sampling_cost import Rates, document, markdown, measure, parse_study
from benchmarks.stream_client import LoadError
from tests.fakes.openai_server import Behaviour, FakeServer, running


def study(**changes):
    parsed = parse_study(["--streams", "3", "--tokens", "5", "--pairs", "2", "--seed", "9"])
    return dataclasses.replace(parsed, **changes)


def run(behaviour, asked):
    async def scenario() -> tuple[list[Rates], FakeServer]:
        async with running(behaviour) as server:
            return await measure(asked, server.base_url, quiet=True), server

    return asyncio.run(scenario())


def test_arms_alternate_with_plain_sampling_at_the_same_lengths():
    arms = arms_named(["top_logprobs 20", "regex"])
    rates, server = run(Behaviour(), study(arms=arms))
    assert [(len(row.plain), len(row.ours)) for row in rates] == [(2, 2), (2, 2)]
    assert min(row.ratio.median for row in rates) > 0.0
    assert server.most_open_streams == 3
    bodies = [body for _, body in server.requests if body.get("max_tokens") == 5]
    waves = [bodies[at : at + 3] for at in range(0, len(bodies), 3)]
    kinds = [
        "logprobs" if "logprobs" in body else "regex" if "structured_outputs" in body else "plain"
        for (body, *_) in waves
    ]
    assert kinds == ["plain", "logprobs", "plain", "regex", "logprobs", "plain", "regex", "plain"]
    prompts = {tuple(body["messages"][0]["content"] for body in wave) for wave in waves}
    assert len(prompts) == 1
    assert len({body["seed"] for body in bodies}) == len(bodies)
    assert all(body["ignore_eos"] and body["temperature"] == 1.0 for body in bodies)


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        (Behaviour(refused=("logit_bias",)), "all options: HTTP 422.*logit_bias"),
        (Behaviour(error_after=17), "plain: "),
    ],
)
def test_a_stream_that_fails_ends_the_study_with_its_reason(behaviour, words):
    with pytest.raises(LoadError, match=words):
        run(behaviour, study(tokens=20, arms=arms_named(["all options"])))


def test_a_stream_of_another_length_ends_the_study():
    with pytest.raises(LoadError, match=r"brought 2 tokens .* where 4 were asked for"):
        run(Behaviour(usage="none", tokens_per_chunk=3), study())


def test_document_holds_every_rate_and_the_page_says_which_goal_is_met():
    regex = arms_named(["regex"])[0]
    rates = [
        Rates(regex, plain=[100.0, 200.0, 100.0], ours=[90.0, 170.0, 79.0]),
        Rates(ARMS[0], plain=[100.0], ours=[84.0]),
    ]
    assert rates[0].ratio.median == 0.85
    assert rates[1].ratio == Ratio(0.84, None, None, 1)
    assert [row.meets_goal for row in rates] == [True, False]
    written = document(study(), rates, "atom-lite serve", ["sampling_cost", "--pairs", "3"])
    assert json.loads(json.dumps(written)) == written
    assert written["arms"][0]["tokens_per_second"] == [90.0, 170.0, 79.0]
    page = markdown(written, rates)
    assert "| regex | 100.0 | 90.0 | 0.850 [0.790, 0.900] | 0.8 | yes |" in page
    assert "| all options | 100.0 | 84.0 | 0.840 | 0.85 | no |" in page


def test_no_arm_can_end_a_stream_early():
    for arm in (PLAIN, *ARMS):
        body = arm.body(seed=1, num_tokens=50)
        assert body["ignore_eos"]
        assert body["max_tokens"] == 50
        assert body["seed"] == 1
        assert body.get("min_tokens", 50) == 50


def test_quick_runs_one_short_pair_and_wrong_sizes_are_refused():
    quick = parse_study(["--quick", "--", "--max-num-seqs", "32"])
    assert (quick.pairs, quick.tokens, quick.streams) == (1, 16, 32)
    assert quick.server_args == ("--max-num-seqs", "32")
    assert quick.arms == ARMS
    with pytest.raises(LoadError, match="--streams must be at least 1"):
        parse_study(["--streams", "0"])
