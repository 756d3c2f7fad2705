"""A chat body's lists are refused at their first wrong item, whatever their length."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from atom_lite.api.schema_chat import ChatCompletionRequest

MANY = [1] * 1000
TURN = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    "body",
    [
        {"messages": MANY},
        {"messages": [{"role": "user", "content": MANY}]},
        {"messages": [TURN], "documents": MANY},
    ],
)
def test_a_long_list_of_the_wrong_type_costs_a_few_complaints(body: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        ChatCompletionRequest.model_validate(body)
    assert caught.value.error_count() <= 3
