"""A long prompt among token streams, or on a machine of its own: where does sharing stop to pay?

Beside streams every chunk must fit what a TBT objective leaves of a step; with each chunk the
prefix costs more, until nothing fits. Where the cached prefix is re-projected for every chunk (MLA
in its prefill form, gamma > 0) there is a wall, in closed form:

    L = (tau - t_dec - c) / gamma      the chunk is empty; times G where G groups share the prefix

Without it (GQA) chunks shrink with 1/L and never end. On a machine of its own the prompt takes the
largest chunks, and its KV is then sent over. Pure arithmetic; runs in simulations only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atom_lite.chunking.latency_model import Chunk

if TYPE_CHECKING:
    from atom_lite.chunking.latency_model import LatencyModel

LEAST_CHUNK = 1  # token; less is a wall
MOST_CHUNK = 16384


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """Who shares the machine with the prompt.

    Attributes:
        rows: that decode.
        context_tokens: of all of them together.
        tbt_seconds: what a step may take beside them.
    """

    rows: int
    context_tokens: int
    tbt_seconds: float


def wall_tokens(model: LatencyModel, streams: Streams, *, groups: int = 1) -> float:
    """The prefix beyond which no chunk fits beside the streams; infinite without a rebuild."""
    if model.prefix_seconds_per_token == 0.0:
        return math.inf
    left = streams.tbt_seconds - model.predict(
        (), decode_rows=streams.rows, decode_context_tokens=streams.context_tokens
    )
    return max(0.0, groups * left / model.prefix_seconds_per_token)


def colocated_seconds(model: LatencyModel, prompt_tokens: int, streams: Streams) -> float:
    """Prefill beside the streams, each step as long as the objective; infinite past the wall."""
    done, seconds = 0, 0.0
    while done < prompt_tokens:
        fitting = model.largest_chunk(
            done,
            streams.tbt_seconds,
            decode_rows=streams.rows,
            decode_context_tokens=streams.context_tokens,
        )
        chunk = min(int(min(fitting, MOST_CHUNK)), prompt_tokens - done)
        if chunk < min(LEAST_CHUNK, prompt_tokens - done):
            return math.inf
        seconds += model.predict(
            [Chunk(done, chunk)],
            decode_rows=streams.rows,
            decode_context_tokens=streams.context_tokens,
        )
        done += chunk
    return seconds


def disaggregated_seconds(
    model: LatencyModel, prompt_tokens: int, *, transfer_seconds_per_token: float
) -> float:
    """Prefill alone in the largest chunks, then the whole KV over the wire."""
    seconds = prompt_tokens * transfer_seconds_per_token
    for start in range(0, prompt_tokens, MOST_CHUNK):
        seconds += model.chunk_seconds(start, min(MOST_CHUNK, prompt_tokens - start))
    return seconds


def crossover_tokens(
    model: LatencyModel,
    streams: Streams,
    *,
    transfer_seconds_per_token: float,
    slowdown: float,
    most: int = 1 << 20,
) -> int | None:
    """The shortest power-of-two prompt that is `slowdown` times as fast on a machine of its own."""
    tokens = 1024
    while tokens <= most:
        alone = disaggregated_seconds(
            model, tokens, transfer_seconds_per_token=transfer_seconds_per_token
        )
        if colocated_seconds(model, tokens, streams) >= slowdown * alone:
            return tokens
        tokens *= 2
    return None
