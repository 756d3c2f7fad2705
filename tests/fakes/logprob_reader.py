"""`messages.Logprobs` as lists, for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from atom_lite.messages import Logprobs


class Position(NamedTuple):
    token_id: int
    logprob: float
    rank: int
    likeliest: list[tuple[int, float]]  # best first


def read(logprobs: Logprobs) -> Position:
    ids = np.frombuffer(logprobs.token_ids, "<i4").tolist()
    values = np.frombuffer(logprobs.logprobs, "<f4").tolist()
    likeliest = list(zip(ids[1:], values[1:], strict=True))
    return Position(ids[0], values[0], logprobs.rank, likeliest)
