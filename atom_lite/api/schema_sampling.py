"""The request fields that shape what is drawn and how much of it is told.

Both generating endpoints take them. Here are the ranges that need no model; what needs one (is a
token id in the vocabulary?) is checked in `sampling` and `named_tokens`. What is strict about types
is said in `schema`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, Field

MAX_STOPS = 64
MAX_STOP_CHARS = 1024
MAX_STOP_TOKEN_IDS = 1024
MAX_BAD_WORDS = 256
MAX_BAD_WORD_CHARS = 1024
MAX_CHOICES_PER_PROMPT = 128
_INT64 = 2**63


def _whole(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


# Goes after a field's limits, or the document would not know of them.
WHOLE = BeforeValidator(_whole)
Int64 = Annotated[int, Field(ge=-_INT64, lt=_INT64), WHOLE]
PositiveInt = Annotated[int, Field(ge=1, lt=_INT64), WHOLE]
NaturalInt = Annotated[int, Field(ge=0, lt=_INT64), WHOLE]
Penalty = Annotated[float, Field(ge=-2, le=2)]
NumChoices = Annotated[int, Field(ge=1, le=MAX_CHOICES_PER_PROMPT), WHOLE]
# -1 is the whole vocabulary; the server's own limit is `--max-logprobs`
NumLogprobs = Annotated[int, Field(ge=-1, lt=_INT64), WHOLE]
Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]
BadWord = Annotated[str, Field(min_length=1, max_length=MAX_BAD_WORD_CHARS)]
TokenIdText = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,9})$")]
# beyond -100 and 100 a bias is clamped, as in vLLM
LogitBias = Annotated[
    dict[TokenIdText, float], Field(json_schema_extra={"additionalProperties": False})
]
# fail_fast: a long list of the wrong type is refused at its first item, not after all of them
TokenIds = Annotated[list[int], Field(fail_fast=True)]


class SamplingFields(BaseModel):
    """What decides the tokens of a choice, how many choices there are, and what is told of them."""

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=_INT64), WHOLE] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Field(gt=0)] | None = None
    logit_bias: LogitBias | None = None
    allowed_token_ids: Annotated[TokenIds, Field(min_length=1)] | None = None
    bad_words: Annotated[list[BadWord], Field(max_length=MAX_BAD_WORDS)] | None = None
    seed: Int64 | None = None
    n: NumChoices | None = None
    best_of: NumChoices | None = None
    min_tokens: NaturalInt | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=MAX_STOPS)] | None = None
    stop_token_ids: Annotated[list[int], Field(max_length=MAX_STOP_TOKEN_IDS)] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    prompt_logprobs: NumLogprobs | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    echo: bool | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, lt=_INT64), WHOLE] | None = None
    truncation_side: Literal["left", "right"] | None = None
