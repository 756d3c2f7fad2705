"""The body of POST /v1/completions."""

from __future__ import annotations

from typing import Annotated, cast

from pydantic import Field

from atom_lite.api.schema import GenerationRequest

DEFAULT_MAX_TOKENS = 16
MAX_PROMPTS = 1024

# fail_fast: a long list of the wrong type is refused at its first item, not after all of them.
TokenIds = Annotated[list[int], Field(fail_fast=True)]
Prompt = (
    str
    | TokenIds
    | Annotated[list[str], Field(fail_fast=True, max_length=MAX_PROMPTS)]
    | Annotated[list[TokenIds], Field(fail_fast=True, max_length=MAX_PROMPTS)]
)


class CompletionRequest(GenerationRequest):
    """One or several prompts, as text or token ids; one choice for each."""

    prompt: Prompt
    add_special_tokens: bool = True

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        """The prompts as a list, in the order of the choices."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if self.prompt and isinstance(self.prompt[0], int):
            return [self.prompt]
        return cast("list[str] | list[list[int]]", self.prompt)
