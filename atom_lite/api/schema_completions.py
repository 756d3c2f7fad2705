"""The body of POST /v1/completions."""

from __future__ import annotations

from typing import Annotated, cast

from pydantic import Field, model_validator

from atom_lite.api.faults import conflict
from atom_lite.api.schema import GenerationRequest
from atom_lite.api.schema_sampling import NaturalInt, NumLogprobs, TokenIds

DEFAULT_MAX_TOKENS = 16
MAX_PROMPTS = 1024

Prompt = (
    str
    | TokenIds
    | Annotated[list[str], Field(fail_fast=True, max_length=MAX_PROMPTS)]
    | Annotated[list[TokenIds], Field(fail_fast=True, max_length=MAX_PROMPTS)]
)


class CompletionRequest(GenerationRequest):
    """One or several prompts, as text or token ids; `n` choices for each."""

    num_logprobs_param = "logprobs"

    prompt: Prompt
    add_special_tokens: bool = True
    logprobs: NumLogprobs | None = None
    # 0 computes the prompt alone
    max_tokens: NaturalInt | None = None
    max_completion_tokens: NaturalInt | None = None

    @model_validator(mode="after")
    def _check_completion(self) -> CompletionRequest:
        if self.asked_max_tokens == 0 and not self.echo and self.prompt_logprobs is None:
            name = self.max_tokens_param
            raise conflict(name, f"'{name}' = 0 needs 'echo': true or 'prompt_logprobs'")
        if (self.model_extra or {}).get("top_logprobs"):
            raise conflict("top_logprobs", "'top_logprobs' is chat's; completions take 'logprobs'")
        return self

    @property
    def num_logprobs(self) -> int | None:
        """Alternatives told with each token."""
        return self.logprobs

    @property
    def echoes_prompt(self) -> bool:
        """Whether the answer begins with the prompt."""
        return bool(self.echo)

    @property
    def repeats_prompt(self) -> bool:
        """Whether each choice says what is told of its prompt."""
        return True

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        """The prompts as a list, in the order of the choices."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if self.prompt and isinstance(self.prompt[0], int):
            return [self.prompt]
        return cast("list[str] | list[list[int]]", self.prompt)
