"""The bodies of POST /tokenize and POST /detokenize."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from atom_lite.api.faults import conflict
from atom_lite.api.schema import RequestBody
from atom_lite.api.schema_chat import Message, TemplateOptions
from atom_lite.api.schema_sampling import TokenIds  # noqa: TC001  # pydantic reads it


class TokenizeRequest(TemplateOptions):
    """Either a prompt or messages. Special tokens: added to a prompt, not to messages."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None

    @model_validator(mode="after")
    def _check_form(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise conflict("prompt", "send either 'prompt' or 'messages'")
        return self


class DetokenizeRequest(RequestBody):
    """Token ids to turn back into text."""

    model: str | None = None
    tokens: TokenIds
