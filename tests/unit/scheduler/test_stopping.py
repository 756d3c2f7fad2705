from __future__ import annotations

from typing import Any

import msgspec
import pytest

from atom_lite.errors import RequestError
from atom_lite.messages import Grammar
from atom_lite.scheduler.sequence import Sequence
from atom_lite.scheduler.stopping import Stop, find_stop, max_output_tokens
from tests.fakes.scheduler_inputs import EOS, make_limits, make_submission

EOS_IDS = frozenset({EOS})


def make_sequence(output: list[int], max_tokens: int = 10, **sampling: Any) -> Sequence:
    message = make_submission(1, [1, 2, 3], max_tokens, **sampling)
    return Sequence(
        submission=message,
        order=(0, 1),
        max_output_tokens=max_tokens,
        root_digest=b"",
        tokens=[*message.prompt_token_ids, *output],
    )


@pytest.mark.parametrize(
    ("output", "sampling", "stop"),
    [
        ([5], {}, None),
        ([EOS], {}, Stop("stop")),
        ([EOS], {"ignore_eos": True}, None),
        ([EOS], {"ignore_eos": True, "stop_token_ids": (EOS,)}, Stop("stop", EOS)),
        ([EOS], {"stop_token_ids": (EOS,)}, Stop("stop")),
        ([5], {"stop_token_ids": (4, 5)}, Stop("stop", 5)),
        ([5, 6], {"stop_token_ids": (5,)}, None),
        ([EOS], {"min_tokens": 2}, None),
        ([5, EOS], {"min_tokens": 2}, Stop("stop")),
        ([5], {"min_tokens": 2, "stop_token_ids": (5,)}, None),
        ([5, 6], {"max_tokens": 2}, Stop("length")),
        ([5, EOS], {"max_tokens": 2}, Stop("stop")),
        ([5, EOS], {"max_tokens": 2, "ignore_eos": True}, Stop("length")),
        ([5, 5], {"max_tokens": 2, "min_tokens": 9}, Stop("length")),
    ],
)
def test_last_token_decides_why_a_sequence_ends(
    output: list[int], sampling: dict[str, Any], stop: Stop | None
) -> None:
    assert find_stop(make_sequence(output, **sampling), EOS_IDS) == stop


@pytest.mark.parametrize("sampling", [{}, {"ignore_eos": True}, {"min_tokens": 5}])
def test_eos_ends_a_grammar_whatever_else_is_asked(sampling: dict[str, Any]) -> None:
    grammar = Grammar(key="k", backend="guidance", compiled=b"")
    sequence = make_sequence([EOS], **sampling)
    sequence.submission = msgspec.structs.replace(sequence.submission, grammar=grammar)
    assert find_stop(sequence, EOS_IDS) == Stop("stop")


@pytest.mark.parametrize(
    ("max_tokens", "changes", "most"),
    [
        (5, {}, 5),
        (500, {"max_model_len": 20}, 10),
        (500, {"num_blocks": 4}, 7),  # 16 tokens of KV, and the last token needs none
        (500, {"num_blocks": 4, "max_model_len": 12}, 2),
    ],
)
def test_output_is_limited_by_client_model_and_pool(
    max_tokens: int, changes: dict[str, int], most: int
) -> None:
    assert max_output_tokens(make_submission(1, 10, max_tokens), make_limits(**changes)) == most


def test_a_prompt_without_room_for_one_token_is_refused_with_both_lengths() -> None:
    limits = make_limits(max_model_len=20)
    assert max_output_tokens(make_submission(1, 19), limits) == 1
    with pytest.raises(RequestError, match="20 tokens but the prompt has 20") as caught:
        max_output_tokens(make_submission(1, 20), limits)
    assert caught.value.code == "context_length_exceeded"


def test_a_prompt_that_wants_no_token_may_fill_model_or_pool() -> None:
    limits = make_limits(max_model_len=20, num_blocks=5)
    assert max_output_tokens(make_submission(1, 20, 0), limits) == 0
    with pytest.raises(RequestError, match=r"20 tokens but the prompt has 21 tokens$"):
        max_output_tokens(make_submission(1, 21, 0), limits)
    with pytest.raises(RequestError, match="prompt has 21 tokens but the KV cache holds 20"):
        max_output_tokens(make_submission(1, 21, 0), make_limits(num_blocks=5))


@pytest.mark.parametrize("field", ["num_logprobs", "num_prompt_logprobs"])
def test_a_negative_number_of_likeliest_tokens_is_refused(field: str) -> None:
    with pytest.raises(RequestError, match="logprobs is -1 but must be at least 0"):
        max_output_tokens(make_submission(1, 5, **{field: -1}), make_limits())
