"""From the fields of a request to the parameters of its sequences."""

from __future__ import annotations

import pytest

from atom_lite.api.named_tokens import NamedTokens
from atom_lite.api.sampling import seed_of_choice
from atom_lite.messages import SamplingParams
from tests.fakes.fake_engine import FakeEngine, engine_ready
from tests.fakes.vocabularies import smollm_tokenizer
from tests.unit.api.serving import DEF, GH, ids_of, in_memory, model_config, run, saying

PATHS = ("chat", "complete")


def sampling_of(tokenizer, ready=None, **fields) -> SamplingParams:
    """What the engine gets of a request, the same from both endpoints."""
    found = []

    async def scenario():
        engine = FakeEngine(ready)
        async with in_memory(engine, tokenizer) as served:
            for path in PATHS:
                answer = await getattr(served, path)(**{"seed": 5, "max_tokens": 8} | fields)
                assert answer.status_code == 200, answer.text
        found.extend(message.sampling for message in engine.submitted)

    run(scenario())
    assert found[0] == found[1]
    return found[0]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"presence_penalty": -2, "frequency_penalty": 2}, {}),
        ({"repetition_penalty": 1.3}, {}),
        ({"repetition_penalty": 1e-30}, {"repetition_penalty": 1e-4}),
        ({"repetition_penalty": 1e30}, {"repetition_penalty": 1e4}),
        ({"min_tokens": 3, "ignore_eos": True}, {}),
        ({"stop_token_ids": [9, 9, 8]}, {"stop_token_ids": (9, 8)}),
        ({"allowed_token_ids": [9, 9, 8]}, {"allowed_token_ids": (9, 8)}),
        (
            {"logit_bias": {"5": 1.5, "299": -100, "7": 0, "9": 1000, "8": -1e9}},
            {"logit_bias": {5: 1.5, 299: -100, 9: 100, 8: -100}},
        ),
        ({"logit_bias": {}, "bad_words": [], "stop_token_ids": []}, {"bad_words": ()}),
        ({"bad_words": ["b"]}, {"bad_words": (tuple(ids_of("b")),)}),
    ],
)
def test_field_reaches_the_sampler(tokenizer, fields, expected):
    got = sampling_of(tokenizer, **fields)
    neutral = SamplingParams(max_tokens=8, seed=5)
    known = {name: value for name, value in fields.items() if not isinstance(value, list | dict)}
    for name in SamplingParams.__struct_fields__:
        assert getattr(got, name) == (known | expected).get(name, getattr(neutral, name)), name


# 205 thousand prompt tokens in the answer
MANY_PROMPTS = {"prompt": [[5] * 200] * 8, "n": 128, "max_tokens": 1}

BAD_FIELDS = [
    ("presence_penalty", 2.01, "2"),
    ("presence_penalty", -2.01, "-2"),
    ("frequency_penalty", 3, "2"),
    ("frequency_penalty", "1", "number"),
    ("repetition_penalty", 0, "greater than 0"),
    ("repetition_penalty", -1, "greater than 0"),
    ("logit_bias", {"300": 1}, "token id 300 is outside the vocabulary of 300"),  # field case 36
    ("logit_bias", {"999999": 1}, "999999"),
    ("logit_bias", {"-1": 1}, "-1"),
    ("logit_bias", {"word": 1}, "word"),
    ("logit_bias", [5], "object"),
    ("allowed_token_ids", [], "at least 1"),
    ("allowed_token_ids", [300], "vocabulary of 300"),
    ("allowed_token_ids", [-1], "vocabulary of 300"),
    ("allowed_token_ids", 5, "array"),
    ("stop_token_ids", [151645], "vocabulary of 300"),  # field case 14
    ("bad_words", "word", "array"),
    ("bad_words", ["x"] * 257, "256"),
    ("n", 0, "1"),
    ("n", 129, "128"),
    ("n", True, "integer"),
    ("best_of", 129, "128"),
    ("prompt_logprobs", -2, "-1"),
    ("prompt_logprobs", 21, "--max-logprobs"),
    ("prompt_logprobs", -1, "--max-logprobs"),
    ("truncate_prompt_tokens", -2, "-1"),
    ("truncate_prompt_tokens", 249, "248 tokens"),
    ("truncation_side", "middle", "left"),
    ("min_tokens", 9, "8 tokens"),
    ("echo", "yes", "boolean"),
    ("return_token_ids", 1, "boolean"),
]


def test_bad_value_is_a_400_with_field_and_limit_and_starts_nothing(tokenizer):
    async def scenario():
        async with in_memory(saying("x"), tokenizer) as served:
            for name, value, part in BAD_FIELDS:
                for path in PATHS:
                    answer = await getattr(served, path)(**{"max_tokens": 8, name: value})
                    assert answer.status_code == 400, (name, value, answer.text)
                    error = answer.json()["error"]
                    assert error["type"] == "invalid_request_error"
                    assert error["param"].split(".")[0] == name, error
                    assert part in error["message"], error
            assert not served.engine.submitted
            assert (await served.chat()).status_code == 200

    run(scenario())


def test_item_of_a_list_is_named_by_its_place(tokenizer):
    async def scenario():
        async with in_memory(saying("x"), tokenizer) as served:
            for fields, param in (
                ({"bad_words": ["a", ""]}, "bad_words.1"),
                ({"stop_token_ids": [1, "2"]}, "stop_token_ids.1"),
                ({"logit_bias": {"5": None}}, "logit_bias.5"),
            ):
                error = (await served.complete(**fields)).json()["error"]
                assert error["param"] == param, error

    run(scenario())


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("chat", {"top_logprobs": 3}, "top_logprobs"),
        ("chat", {"top_logprobs": 3, "logprobs": False}, "top_logprobs"),
        ("chat", {"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ("chat", {"top_logprobs": -1, "logprobs": True}, "top_logprobs"),
        ("chat", {"logprobs": 3}, "logprobs"),
        ("chat", {"max_tokens": 0, "echo": True}, "max_tokens"),
        ("complete", {"logprobs": 21}, "logprobs"),
        ("complete", {"logprobs": True}, "logprobs"),
        ("complete", {"top_logprobs": 3}, "top_logprobs"),
        ("complete", {"max_tokens": 0}, "max_tokens"),
        ("complete", {"max_completion_tokens": 0}, "max_completion_tokens"),
        ("complete", {"prompt": ["x"] * 9, "n": 128}, "n"),
        ("complete", {"allowed_token_ids": [5] * 40_000, "n": 128}, "allowed_token_ids"),
        ("complete", MANY_PROMPTS | {"echo": True, "logprobs": 20}, "logprobs"),
        ("complete", MANY_PROMPTS | {"prompt_logprobs": 20}, "prompt_logprobs"),
        ("chat", {"prompt_logprobs": 0, "stream": True}, "prompt_logprobs"),
        ("chat", {"best_of": 2, "n": 3}, "best_of"),
        ("chat", {"best_of": 2, "stream": True}, "best_of"),
        ("chat", {"allowed_token_ids": [0, 9], "stop_token_ids": [9], "min_tokens": 1}, None),
    ],
)
def test_fields_that_do_not_go_together_are_refused(tokenizer, path, fields, param):
    async def scenario():
        async with in_memory(saying("x"), tokenizer) as served:
            answer = await getattr(served, path)(**fields)
            assert answer.status_code == 400, answer.text
            assert answer.json()["error"]["param"] == (param or "allowed_token_ids")
            assert not served.engine.submitted

    run(scenario())


def test_model_and_operator_give_defaults_that_a_request_overrules(tokenizer):
    defaults = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40.0,
        "min_p": 0.05,
        "repetition_penalty": 1.25,
    }
    ready = engine_ready(default_sampling=defaults)
    got = sampling_of(tokenizer, ready)
    assert {name: getattr(got, name) for name in defaults} == defaults
    asked = {"temperature": 1, "top_p": 1, "top_k": 0, "min_p": 0, "repetition_penalty": 1}
    got = sampling_of(tokenizer, ready, **asked)
    assert {name: getattr(got, name) for name in asked} == asked


def test_server_without_a_limit_gives_the_whole_vocabulary(tokenizer):
    async def scenario():
        engine = FakeEngine()
        async with in_memory(engine, tokenizer, model_config(max_logprobs=-1)) as served:
            for logprobs in (-1, 300, 5000):
                assert (await served.complete(logprobs=logprobs)).status_code == 200
            assert [each.sampling.num_logprobs for each in engine.submitted] == [300] * 3

    run(scenario())


def test_bad_word_is_forbidden_at_the_start_of_a_text_and_after_a_space():
    tokenizer = smollm_tokenizer()
    tokens = NamedTokens(tokenizer, 49152)

    def ids(text: str) -> tuple[int, ...]:
        return tuple(tokenizer.encode(text, add_special_tokens=False))

    assert tokens.bad_words(["fox"]) == (ids("fox"), ids(" fox"))
    assert tokens.bad_words([" fox", "fox"]) == (ids("fox"), ids(" fox"))
    assert len(ids("123")) + 1 == len(ids(" 123"))  # a token of the space alone
    assert tokens.bad_words(["123"]) == (ids("123"),)
    assert len(ids("abouts")) != len(ids(" abouts"))
    assert tokens.bad_words(["abouts"]) == (ids("abouts"), ids(" abouts"))
    assert tokens.bad_words(["  "]) == (ids("  "), ids("   "))
    assert tokens.bad_words(None) == ()


def test_choices_have_seeds_of_their_own_and_the_first_keeps_the_request_s():
    for seed in (0, 1, 2**63 - 1):
        seeds = [seed_of_choice(seed, choice) for choice in range(128)]
        assert seeds[0] == seed
        assert len(set(seeds)) == 128
        assert all(0 <= each < 2**63 for each in seeds)
    assert seed_of_choice(1, 1) != seed_of_choice(0, 1)
    assert [seed_of_choice(7, choice) for choice in (1, 2)] == [
        seed_of_choice(7, choice) for choice in (1, 2)
    ]


def test_tokens_of_several_letters_are_named_as_one(tokenizer):
    assert NamedTokens(tokenizer, 300).bad_words(["DEF", "GH"]) == ((DEF,), (GH,))
