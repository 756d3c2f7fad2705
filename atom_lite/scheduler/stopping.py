"""When a sequence has its last token, and why.

Why: the rules are few but every client sees them, so they are one pure function. Runs in the head
process. Stop *strings* are not here: the frontend matches text and then sends an abort with the
reason "stop". The sampler masks stop tokens until `min_tokens`; this module agrees with it.

The stop token itself is delivered and counted; the frontend hides its text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from atom_lite.errors import RequestError
from atom_lite.scheduler.prompt_scores import MOST_ENTRIES_PER_STEP

if TYPE_CHECKING:
    from atom_lite.messages import FinishReason, SamplingParams, SubmitSequence
    from atom_lite.scheduler.limits import SchedulerLimits
    from atom_lite.scheduler.sequence import Sequence


class Stop(NamedTuple):
    """Why a sequence ends; `stop_token_id` is set for a match of `stop_token_ids`, not for EOS."""

    reason: FinishReason
    stop_token_id: int | None = None


def max_output_tokens(message: SubmitSequence, limits: SchedulerLimits) -> int:
    """How many tokens the sequence may generate before it ends with "length".

    The least of what the client asks for, what the model's context leaves, and what the whole KV
    cache could hold if nothing else ran. The last token's own KV is never written, hence the + 1.
    So a sequence that outgrows the cache ends just where, alone, it could get no further block.
    None at all where the client wants none: then only the prompt is computed.

    Raises:
        RequestError: the request can never be served; the scheduler turns it into the sequence's
            terminal event.
    """
    prompt = len(message.prompt_token_ids)
    if prompt < 1:
        raise RequestError("the prompt is empty; at least one token is needed", param="prompt")
    most = message.sampling.max_tokens
    if most < 0:
        raise RequestError(f"max_tokens is {most} but must be at least 0", param="max_tokens")
    _check_scores(message.sampling, prompt, limits)
    least = min(most, 1)
    if prompt + least > limits.max_model_len:
        room = ", which leaves no room for an output token" if least else ""
        raise RequestError(
            f"this model's maximum context length is {limits.max_model_len} tokens but the prompt "
            f"has {prompt} tokens{room}",
            param="prompt",
            code="context_length_exceeded",
        )
    if prompt + least > limits.pool_tokens:
        raise RequestError(
            f"the prompt has {prompt} tokens but the KV cache holds {limits.pool_tokens} "
            f"({limits.num_blocks} blocks of {limits.block_size}), prompt and output together",
            param="prompt",
            code="context_length_exceeded",
        )
    return min(
        most,
        limits.max_model_len - prompt,
        limits.pool_tokens + 1 - prompt,
    )


def _check_scores(sampling: SamplingParams, num_prompt: int, limits: SchedulerLimits) -> None:
    """Refuse log probabilities that make no sense, or of a prompt that no one step can report."""
    for name, value in (
        ("logprobs", sampling.num_logprobs),
        ("prompt_logprobs", sampling.num_prompt_logprobs),
    ):
        if value is not None and value < 0:
            raise RequestError(f"{name} is {value} but must be at least 0", param=name)
    count = sampling.num_prompt_logprobs
    if count is None or not limits.whole_prompts:
        return
    most = MOST_ENTRIES_PER_STEP // (count + 1)
    if num_prompt > most:
        raise RequestError(
            f"prompt_logprobs is {count} for a prompt of {num_prompt} tokens but a server without "
            f"chunked prefill can report so many of {most} tokens only",
            param="prompt_logprobs",
        )


def find_stop(sequence: Sequence, eos_token_ids: frozenset[int]) -> Stop | None:
    """Whether the last token ends the sequence: EOS goes before a stop id, both before length."""
    sampling = sequence.submission.sampling
    num_output_tokens = sequence.num_output_tokens
    if sequence.submission.grammar is not None and sequence.tokens[-1] in eos_token_ids:
        return Stop("stop")  # the grammar is complete, whatever ignore_eos and min_tokens say
    if num_output_tokens >= sampling.min_tokens:
        token_id = sequence.tokens[-1]
        if token_id in eos_token_ids and not sampling.ignore_eos:
            return Stop("stop")
        if token_id in sampling.stop_token_ids:
            return Stop("stop", token_id)
    if num_output_tokens >= sequence.max_output_tokens:
        return Stop("length")
    return None
