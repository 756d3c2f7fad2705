"""What the requests of each arm of `sampling_cost` ask for beside plain sampling, and its goal.

Every arm draws the same number of tokens from each stream: nothing in it can end one early.
Pure; must not know how the requests are sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

FREE = {"temperature": 1.0, "top_p": 1.0, "ignore_eos": True}

# A list of objects that is far from its end when the tokens are over, and words that go on.
LIST_SCHEMA = {
    "type": "array",
    "minItems": 500,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 40},
            "kind": {"enum": ["river", "city", "mountain", "island"]},
            "size": {"type": "integer"},
            "known": {"type": "boolean"},
        },
        "required": ["name", "kind", "size", "known"],
        "additionalProperties": False,
    },
}
RUNNING_REGEX = "([A-Za-z]+[ ,.]){1000}"

BIASED_IDS = range(400, 700)
ALLOWED_IDS = range(300, 2300)
BAD_WORDS = ("very", "indeed", "on the other hand", "as a language model", "in conclusion")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One kind of request.

    Args:
        name: in tables, and of `--arms`.
        fields: of the body, beside FREE.
        goal: least ratio of its tokens per second to those of plain sampling.
        fixes_length: asks for min_tokens too, which plain sampling does without.
    """

    name: str
    fields: dict[str, Any]
    goal: float
    fixes_length: bool = False

    def body(self, seed: int, num_tokens: int) -> dict[str, Any]:
        """The fields of one request of `num_tokens` output tokens."""
        length = {"min_tokens": num_tokens} if self.fixes_length else {}
        return FREE | self.fields | length | {"seed": seed, "max_tokens": num_tokens}


PLAIN = Arm(name="plain", fields={}, goal=1.0)

# All but top_k, which makes a draw cheaper: it leaves few ids to look at.
_OPTIONS: dict[str, Any] = {
    "temperature": 0.9,
    "top_p": 0.95,
    "min_p": 0.01,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.3,
    "repetition_penalty": 1.1,
    "logit_bias": {str(token_id): (-1.0) ** token_id for token_id in BIASED_IDS},
    "allowed_token_ids": list(ALLOWED_IDS),
    "bad_words": list(BAD_WORDS),
    "stop_token_ids": [1, 2],
    "stop": ["\n\n\n###"],
}

ARMS = (
    Arm(
        name="all options",
        fields=_OPTIONS | {"top_k": 50},
        goal=0.85,
        fixes_length=True,
    ),
    Arm(name="all but top_k", fields=_OPTIONS, goal=0.85, fixes_length=True),
    Arm(name="top_logprobs 20", fields={"logprobs": True, "top_logprobs": 20}, goal=0.8),
    Arm(
        name="json schema",
        fields={
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "places", "schema": LIST_SCHEMA, "strict": True},
            }
        },
        goal=0.8,
    ),
    Arm(name="regex", fields={"structured_outputs": {"regex": RUNNING_REGEX}}, goal=0.8),
)


def arms_named(names: Sequence[str]) -> tuple[Arm, ...]:
    """Those of the arms, all for no names.

    Raises:
        KeyError: there is no arm of a name.
    """
    by_name = {arm.name: arm for arm in ARMS}
    return tuple(by_name[name] for name in names) or ARMS
