"""What a request must fit into before it becomes sequences: context, KV cache, and the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from atom_lite.errors import RequestError

if TYPE_CHECKING:
    from atom_lite.api.engine_client import EngineClient
    from atom_lite.api.schema import GenerationRequest
    from atom_lite.messages import EngineReady

MAX_SEQUENCES = 1024  # of one request: prompts times candidates
# Each sequence carries its own copy of what a request lists; this many ids take some 20 MB and
# 50 ms of the event loop.
MAX_LISTED_IDS = 4_000_000
# Log probabilities of prompts in one answer; so many are 100 to 300 MB of JSON, 4 s to write.
MAX_PROMPT_FIGURES = 4_000_000


class PromptInput(NamedTuple):
    """A prompt as tokens, and as the text that the client sent, if it sent one."""

    token_ids: list[int]
    text: str | None = None


class ContextLimits:
    """Fits prompts and their outputs into the model's context and the KV cache."""

    def __init__(self, ready: EngineReady) -> None:
        self._ready = ready
        self._capacity = ready.num_blocks * ready.block_size

    def truncated(self, body: GenerationRequest, prompt: PromptInput, room: int) -> PromptInput:
        """The prompt cut as `truncate_prompt_tokens` says.

        Args:
            body: the request; -1 keeps what the model's context leaves beside the output.
            prompt: to cut; what is cut off is no longer as the client wrote it.
            room: tokens that the output asks for.

        Raises:
            RequestError: more tokens are to be kept than can be served, or none.
        """
        kept = body.truncate_prompt_tokens
        if kept is None:
            return prompt
        most = max(0, self._ready.max_model_len - room)
        output = f"{room} of output"
        if body.asked_max_tokens is not None:
            output += f" ('{body.max_tokens_param}')"
        if kept > most:
            raise RequestError(
                f"'truncate_prompt_tokens' = {kept} is more than the {most} tokens that the "
                f"context of {self._ready.max_model_len} leaves beside {output}",
                param="truncate_prompt_tokens",
            )
        kept = most if kept < 0 else kept
        if kept == 0:
            raise RequestError(
                f"'truncate_prompt_tokens' = {body.truncate_prompt_tokens} leaves no token of the "
                f"prompt beside {output}",
                param="truncate_prompt_tokens",
            )
        ids = prompt.token_ids
        if len(ids) <= kept:
            return prompt
        return PromptInput(
            ids[:kept] if body.truncation_side == "right" else ids[len(ids) - kept :]
        )

    def max_tokens(self, body: GenerationRequest, num_prompt: int, default: int | None) -> int:
        """The most output tokens of a sequence.

        Args:
            body: the request.
            num_prompt: tokens of the prompt.
            default: this much where the client says nothing, as far as it fits; None means all
                that fits.

        Raises:
            RequestError: prompt and output can never be served.
        """
        asked, limit = body.asked_max_tokens, self._ready.max_model_len
        least = 1 if asked is None else asked
        if num_prompt == 0:
            raise RequestError(
                "The prompt is empty: it needs at least one token", param=body.prompt_param
            )
        if num_prompt + least > limit:
            blame = body.max_tokens_param if asked and num_prompt < limit else body.prompt_param
            raise _too_long(num_prompt, least, limit, blame)
        if num_prompt + min(1, least) > self._capacity:
            raise RequestError(
                f"The prompt's {num_prompt} tokens and one of output do not fit the KV cache of "
                f"{self._capacity} tokens",
                param=body.prompt_param,
                code="context_length_exceeded",
            )
        if asked is not None:
            return asked
        room = limit - num_prompt
        if default is None:
            default = int(self._ready.default_sampling.get("max_new_tokens", room))
        return min(room, default)


def check_num_sequences(body: GenerationRequest, num_prompts: int) -> None:
    """Refuse a request of more sequences than one may have, or of too much for each of them.

    Raises:
        RequestError: 400.
    """
    num_sequences = num_prompts * body.num_candidates
    if num_sequences > MAX_SEQUENCES:
        param = "best_of" if body.num_candidates > body.num_choices else "n"
        raise RequestError(
            f"'{param}' = {body.num_candidates} of {num_prompts} prompts is {num_sequences} "
            f"sequences, more than the {MAX_SEQUENCES} that a request may have",
            param=param,
        )
    for param, listed in (
        ("logit_bias", body.logit_bias),
        ("allowed_token_ids", body.allowed_token_ids),
    ):
        if num_sequences * len(listed or ()) > MAX_LISTED_IDS:
            raise RequestError(
                f"'{param}' has {len(listed or ())} ids for each of {num_sequences} sequences, "
                f"more than {MAX_LISTED_IDS} in all",
                param=param,
            )


def check_prompt_figures(
    body: GenerationRequest, prompts: list[PromptInput], num_likeliest: int | None
) -> None:
    """Refuse a request whose answer would tell too much of its prompts.

    Args:
        body: the request.
        prompts: all of them, as the engine gets them.
        num_likeliest: alternatives told with each of their tokens; None tells nothing.

    Raises:
        RequestError: 400.
    """
    if num_likeliest is None:
        return
    times = body.num_choices if body.repeats_prompt else 1
    num_tokens = times * sum(len(prompt.token_ids) for prompt in prompts)
    if num_tokens * (num_likeliest + 1) > MAX_PROMPT_FIGURES:
        param = "prompt_logprobs" if body.prompt_logprobs is not None else body.num_logprobs_param
        raise RequestError(
            f"'{param}' of {num_tokens} prompt tokens, {times} times each prompt, with "
            f"{num_likeliest} alternatives are more than the {MAX_PROMPT_FIGURES} log "
            "probabilities of prompts that an answer may hold",
            param=param,
        )


class QueueLimit:
    """Decides whether a new request would make the waiting queue too long.

    The engine's snapshot is a step old, so sequences sent since then are counted here: first as
    taking free seats, then as waiting.

    Args:
        engine: whose snapshots are read.
        limit: most sequences that may wait; None is no limit.
    """

    def __init__(self, engine: EngineClient, limit: int | None) -> None:
        self._engine = engine
        self._limit = limit
        self._snapshot = engine.stats
        self._num_since = 0

    def take(self, num_new: int) -> bool:
        """Count new sequences in, or return False when they would have to wait and may not."""
        stats = self._engine.stats
        if stats is not self._snapshot:
            self._snapshot, self._num_since = stats, 0
        if self._limit is not None:
            free = 0
            if stats.num_waiting == 0:
                free = max(0, self._engine.ready.max_num_seqs - stats.num_running)
            num_waiting = stats.num_waiting + max(0, self._num_since - free)
            must_wait = self._num_since + num_new > free
            if must_wait and num_waiting >= self._limit:
                return False
        self._num_since += num_new
        return True


def _too_long(num_prompt: int, num_output: int, limit: int, param: str) -> RequestError:
    """OpenAI's own words: client libraries look for "maximum context length"."""
    return RequestError(
        f"This model's maximum context length is {limit} tokens. However, you requested "
        f"{num_prompt + num_output} tokens ({num_prompt} in the prompt, {num_output} for the "
        "completion). Please reduce the length of the prompt or of the completion.",
        param=param,
        code="context_length_exceeded",
    )
