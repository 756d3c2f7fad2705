"""Both shapes of log probabilities, and that of prompts."""

from __future__ import annotations

import json
import math
import struct

import pytest

from atom_lite.api.logprobs import LogprobWriter, TokenTable, own_logprob
from atom_lite.messages import Logprobs
from atom_lite.text.listed_tokens import ListedToken
from tests.fakes.vocabularies import metaspace_tokenizer, smollm_tokenizer

SMILE = [40303, 218]  # " " and a smiling face of two tokens
DEF, GH = 33203, 23960
PADDING = 60_000  # an id that the tokenizer does not know


def told(*pairs: tuple[int, float], rank: int = 1) -> Logprobs:
    ids, values = zip(*pairs, strict=True)
    return Logprobs(struct.pack(f"<{len(ids)}i", *ids), struct.pack(f"<{len(ids)}f", *values), rank)


def writer(num_top: int, **options) -> LogprobWriter:
    return LogprobWriter(TokenTable(smollm_tokenizer()), num_top, **options)


def test_chat_entries_carry_text_bytes_and_the_likeliest():
    tokens = [
        ListedToken(DEF, 0, told((DEF, -1.5), (GH, -0.5), (DEF, -1.5))),
        ListedToken(SMILE[0], 3, told((SMILE[0], -2.0), (SMILE[0], -2.0), (SMILE[1], -3.0))),
    ]
    assert json.loads(writer(2).chat(tokens)) == {
        "content": [
            {
                "token": "DEF",
                "logprob": -1.5,
                "bytes": [68, 69, 70],
                "top_logprobs": [
                    {"token": "GH", "logprob": -0.5, "bytes": [71, 72]},
                    {"token": "DEF", "logprob": -1.5, "bytes": [68, 69, 70]},
                ],
            },
            {
                "token": " \ufffd",
                "logprob": -2.0,
                "bytes": [32, 240, 159, 152],
                "top_logprobs": [
                    {"token": " \ufffd", "logprob": -2.0, "bytes": [32, 240, 159, 152]},
                    {"token": "\ufffd", "logprob": -3.0, "bytes": [128]},
                ],
            },
        ],
        "refusal": None,
    }
    assert json.loads(writer(0).chat([]))["content"] == []


def test_completion_lists_are_of_one_length_and_add_the_token_itself():
    tokens = [
        ListedToken(GH, 0),
        ListedToken(DEF, 2, told((DEF, -4.5), (GH, -0.5), (57, -0.75))),
        ListedToken(GH, 5, told((GH, -0.5), (GH, -0.5), (57, -0.75))),
    ]
    assert json.loads(writer(2).completion(tokens)) == {
        "tokens": ["GH", "DEF", "GH"],
        "token_logprobs": [None, -4.5, -0.5],
        "top_logprobs": [
            None,
            {"GH": -0.5, "I": -0.75, "DEF": -4.5},
            {"GH": -0.5, "I": -0.75},
        ],
        "text_offset": [0, 2, 5],
    }
    assert json.loads(writer(0).completion(tokens[1:2]))["top_logprobs"] == [{"DEF": -4.5}]


def test_parts_of_characters_stay_apart_where_there_are_no_bytes():
    first, second = SMILE
    entry = told((first, -1.0), (second, -2.0), (179, -3.0))
    lists = json.loads(writer(2).completion([ListedToken(first, 0, entry)]))
    assert lists["tokens"] == [r"bytes:\x20\xf0\x9f\x98"]
    assert lists["top_logprobs"][0][r"bytes:\x80"] == -2.0
    assert len(lists["top_logprobs"][0]) == 3


@pytest.mark.parametrize("value", [-math.inf, math.nan, -1e30])
def test_what_cannot_come_is_a_finite_number(value):
    entry = told((DEF, value), (GH, value), rank=2)
    tokens = [ListedToken(DEF, 0, entry)]
    chat = json.loads(writer(1).chat(tokens))["content"][0]
    assert chat["logprob"] == chat["top_logprobs"][0]["logprob"] == -9999.0
    lists = json.loads(writer(1).completion(tokens))
    assert lists["token_logprobs"] == [-9999.0]
    assert lists["top_logprobs"] == [{"GH": -9999.0, "DEF": -9999.0}]
    assert json.loads(writer(1).prompt([entry]))[1][str(DEF)]["logprob"] == -9999.0
    assert own_logprob(entry) == -9999.0


def test_prompt_entries_are_by_id_with_rank_and_text():
    entries = [told((DEF, -4.5), (GH, -0.5), rank=30), told((GH, -0.5), (GH, -0.5))]
    assert json.loads(writer(1).prompt(entries)) == [
        None,
        {
            str(DEF): {"logprob": -4.5, "rank": 30, "decoded_token": "DEF"},
            str(GH): {"logprob": -0.5, "rank": 1, "decoded_token": "GH"},
        },
        {str(GH): {"logprob": -0.5, "rank": 1, "decoded_token": "GH"}},
    ]
    assert json.loads(writer(3).prompt([])) == [None]


def test_fewer_are_shown_than_were_told_when_another_list_wanted_more():
    entry = told((DEF, -1.0), (DEF, -1.0), (GH, -2.0), (57, -3.0))
    assert len(json.loads(writer(1).chat([ListedToken(DEF, 0, entry)]))["content"]) == 1
    assert json.loads(writer(1).completion([ListedToken(DEF, 0, entry)]))["top_logprobs"] == [
        {"DEF": -1.0}
    ]
    assert len(json.loads(writer(2).prompt([entry]))[1]) == 2


def test_tokens_may_be_named_by_their_ids():
    entry = told((DEF, -1.0), (SMILE[1], -2.0))
    chat = json.loads(writer(1, tokens_as_ids=True).chat([ListedToken(DEF, 0, entry)]))
    assert chat["content"][0]["token"] == f"token_id:{DEF}"
    assert chat["content"][0]["bytes"] == [68, 69, 70]
    lists = json.loads(writer(1, tokens_as_ids=True).completion([ListedToken(DEF, 0, entry)]))
    assert lists["top_logprobs"] == [{f"token_id:{SMILE[1]}": -2.0, f"token_id:{DEF}": -1.0}]


def test_control_tokens_are_named_and_ids_without_a_token_have_no_text():
    table = TokenTable(smollm_tokenizer())
    assert table[2].text == b'"<|im_end|>"'
    assert table[PADDING] == (b'""', b'""', b"[]")
    assert TokenTable(metaspace_tokenizer())[999_999].text == b'""'
