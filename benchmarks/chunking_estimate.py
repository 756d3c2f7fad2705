"""How long the parts of `dynamic_chunking` take, told before they begin. Pure arithmetic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.chunk_arms import distinct_fixed_arms, is_fixed
from benchmarks.chunking_pairs import OTHERS_EVERY_ROUNDS, PICK_AGAIN

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.chunking_options import Options

# SmolLM2-135M in float32 on two Zen 3 cores, and its layers; other models scale themselves.
TOKENS_PER_SECOND = 280.0
_MODEL_LAYERS = 30
_SERVER_START_SECONDS = 8.0
_WARM_ROUNDS = 2.0
_FITTED_ARMS = 5.0  # makespan, atom, sglang and two of the hindsight grid
_CONTENDERS = 4.0
_INTERFERENCE_FACTOR = 1.5  # a prefill beside streams, and the control before it


def estimated_minutes(options: Options, splits: Mapping[int, Sequence[int]]) -> dict[str, float]:
    """Minutes of each part that will run."""
    passes = sum(options.lengths)
    estimates = {
        "pairs": _pairs_tokens(options) / TOKENS_PER_SECOND,
        "replay": _replay_tokens(options, splits) / TOKENS_PER_SECOND,
        "http": options.visits * 3 * (_SERVER_START_SECONDS + 2 * passes / TOKENS_PER_SECOND),
        "load": _load_tokens(options) / TOKENS_PER_SECOND,
    }
    return {
        part: min(seconds, options.budget_seconds) / 60.0
        for part, seconds in estimates.items()
        if options.mode in (part, "all")
    }


def _pairs_tokens(options: Options) -> float:
    total = 0.0
    for tokens in options.lengths:
        fixed = len(distinct_fixed_arms(options.arms, tokens))
        others = len([arm for arm in options.arms if not is_fixed(arm)]) - 1
        prompts = _WARM_ROUNDS + fixed + PICK_AGAIN
        prompts += options.rounds * (2 + others / OTHERS_EVERY_ROUNDS)
        total += prompts * tokens
    return total


def _replay_tokens(options: Options, splits: Mapping[int, Sequence[int]]) -> float:
    """In tokens through the whole model: kinds of stages are measured once each."""
    share = sum({layers for split in splits.values() for layers in split}) / _MODEL_LAYERS
    longest = max(options.lengths)
    fixed = len([arm for arm in options.arms if is_fixed(arm)]) * longest
    fitted = _FITTED_ARMS * sum(options.lengths)
    later = _CONTENDERS * sum(options.lengths)
    return share * (longest + fixed + fitted + (options.replay_rounds - 1) * later)


def _load_tokens(options: Options) -> float:
    total = 0.0
    for level, tokens in options.levels:
        picks = len(distinct_fixed_arms(options.arms, tokens))
        total += (picks + 2 * options.load_rounds) * level * tokens
    return total + 2 * options.load_rounds * max(options.lengths) * _INTERFERENCE_FACTOR
